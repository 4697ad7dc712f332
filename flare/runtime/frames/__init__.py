"""The host side of the frames: writing a launch's arguments, reading its completion."""
