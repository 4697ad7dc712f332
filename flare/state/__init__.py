"""Storage for what was declared: the arena, and copies of it by declaration."""
