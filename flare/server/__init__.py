"""OpenAI-compatible HTTP over one engine."""
