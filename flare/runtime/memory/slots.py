"""Rows of the device request table, each with a generation that outdates whatever an earlier holder left."""

from collections.abc import Iterable


class Slots:
    """The pool of slots 0..total-1."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._generations = [0] * total

    @property
    def free(self) -> int:
        """Slots nobody holds."""
        return len(self._free)

    def take(self) -> tuple[int, int]:
        """(slot, generation): the generation has never been given out for this slot before."""
        slot = self._free.pop()
        self._generations[slot] += 1
        return slot, self._generations[slot]

    def release(self, slot: int) -> None:
        """Give the slot back; no queued graph may name it."""
        assert slot not in self._free, f"slot {slot} is already free"
        self._free.append(slot)

    def check(self, held: Iterable[int]) -> None:
        """Raise AssertionError unless every slot is free or held, and by one alone."""
        assert sorted([*held, *self._free]) == list(range(self.total)), "a slot is leaked or held twice"
