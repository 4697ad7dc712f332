"""Measurements: paired and interleaved, ratios before milliseconds."""
