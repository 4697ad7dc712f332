"""Snapshot rows with reference counts: one for the writer or prefix that owns a row, one per launch that names it."""

from flare.errors import CapacityError


class Snapshots:
    """The pool of snapshots 0..total-1; which prefix a row holds is the prefix index's to know."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total

    @property
    def free(self) -> int:
        """Rows nobody refers to."""
        return len(self._free)

    def take(self) -> int:
        """Claim a free row, with one reference.

        Raises:
            CapacityError: none is free.
        """
        if not self._free:
            raise CapacityError(f"A snapshot is needed, but all {self.total} are held.")
        snapshot = self._free.pop()
        self._references[snapshot] = 1
        return snapshot

    def share(self, snapshot: int) -> None:
        """Add one reference to a row that somebody already holds."""
        assert self._references[snapshot] > 0, f"snapshot {snapshot} is free and cannot be shared"
        self._references[snapshot] += 1

    def release(self, snapshot: int) -> None:
        """Drop one reference; the last one frees the row."""
        assert self._references[snapshot] > 0, f"snapshot {snapshot} is released more often than it was taken"
        self._references[snapshot] -= 1
        if self._references[snapshot] == 0:
            self._free.append(snapshot)

    def references(self, snapshot: int) -> int:
        """How many hold the row."""
        return self._references[snapshot]

    def check(self) -> None:
        """Raise AssertionError unless the counts agree with each other."""
        assert len(set(self._free)) == len(self._free)
        assert all((self._references[snapshot] == 0) == (snapshot in self._free) for snapshot in range(self.total))
