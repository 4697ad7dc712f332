"""Storage for what was declared: the arena."""
