"""Tenancy: the frames of a device belong to one engine at a time, and to none after its end."""

from flare.errors import RequestError


class Tenancy:
    """Who may use a device's frames."""

    def __init__(self) -> None:
        self._taken = self._ended = False

    def take(self) -> None:
        """Give the frames to an engine.

        Raises:
            RequestError: another engine has them, or the device is closed.
        """
        if self._ended:
            raise RequestError("This core is closed: prepare it again to serve from it.")
        if self._taken:
            raise RequestError("This core already serves an engine: close that one first.")
        self._taken = True

    def leave(self) -> None:
        """Take the frames back. Idempotent."""
        self._taken = False

    def end(self) -> bool:
        """Nobody gets the frames any more; whether this was the first call."""
        first, self._ended = not self._ended, True
        return first
