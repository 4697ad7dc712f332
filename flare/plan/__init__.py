"""What is decided before a byte is loaded: declarations, shapes, catalog and memory. Ints and names, never torch."""
