"""What crosses the seam at run time: manifest, frames, policies, the Device protocol. NumPy at most, never torch."""
