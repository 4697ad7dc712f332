"""Checkpoints: where weights come from, what their headers say, and their tensors in a form torch can use."""
