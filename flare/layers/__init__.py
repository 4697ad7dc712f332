"""Model parts built from operators, each with prefill, verify and commit, and declared state."""
