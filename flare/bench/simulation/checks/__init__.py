"""What is held against the truth: each request's tokens, what is cached, and the counts of all that is held."""
