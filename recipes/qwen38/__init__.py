"""Qwen3.8-Flash-Next with its embedded MTP drafter."""
