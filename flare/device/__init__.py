"""Devices: they bind programs to shapes and replay them in order over two frames."""
