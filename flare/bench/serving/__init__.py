"""The server under load: a soak that looks for leaks, and what HTTP costs beside the engine itself."""
