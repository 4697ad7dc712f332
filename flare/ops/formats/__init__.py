"""Stored number formats: NVFP4 and FP8, read by operators and written by the synthetic checkpoint."""
