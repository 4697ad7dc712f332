"""What clients send: bodies, their limits, and how a mistake in them is told."""
