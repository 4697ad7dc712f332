"""Page ids with reference counts, handed out in consecutive runs where that is possible."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from flare.errors import CapacityError


class Pages:
    """The pool of page ids 0..total-1.

    A page is free when nobody refers to it.

    Attributes:
        free: pages nobody refers to; releases: references ever dropped, so that who waits for pages knows when to look.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self.releases = 0
        self._references = np.zeros(total, np.int32)

    def take(self, count: int, after: int | None = None) -> tuple[int, ...]:
        """Claim `count` free pages, each with one reference.

        The shortest free run that holds all of them is used; without one, the longest runs: a request whose pages
        follow each other is read by attention as one view instead of a gather.

        Args:
            after: the last page its owner holds: pages that follow it come first.

        Raises:
            CapacityError: fewer than `count` pages are free; nothing is taken.
        """
        if count > self.free:
            raise CapacityError(f"{count} pages are needed, but {self.free} of {self.total} are free.")
        pages = self._following(count, after) if after is not None else self._choose(count)
        self._references[list(pages)] = 1
        self.free -= count
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Add one reference to pages that somebody already holds."""
        held = list(pages)
        assert all(self._references[page] > 0 for page in held), "a free page cannot be shared"
        np.add.at(self._references, held, 1)

    def release(self, pages: Iterable[int]) -> None:
        """Drop one reference of each page; the last one frees it."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is released more often than it was taken"
            self._references[page] -= 1
            self.releases += 1
            self.free += int(self._references[page] == 0)

    def only_held_by(self, held: NDArray[np.int32]) -> int:
        """How many pages would be free if a holder with these [total] references let go of all of them."""
        return int(((held > 0) & (self._references == held)).sum())

    def counts(self) -> NDArray[np.int32]:
        """[total] references of every page, a copy."""
        return self._references.copy()

    def references(self, page: int) -> int:
        """How many hold the page."""
        return int(self._references[page])

    def check(self) -> None:
        """Raise AssertionError unless the counts agree with each other."""
        assert (self._references >= 0).all()
        assert self.free == int((self._references == 0).sum())

    def _runs(self) -> list[tuple[int, int]]:
        """(first, length) of every maximal free run."""
        free = np.concatenate(([0], self._references == 0, [0])).astype(np.int8)
        edges = np.flatnonzero(np.diff(free))
        return [(int(first), int(end - first)) for first, end in zip(edges[::2], edges[1::2], strict=True)]

    def _following(self, count: int, after: int) -> tuple[int, ...]:
        end = min(after + 1 + count, self.total)
        following = tuple(range(after + 1, end))
        if len(following) == count and not self._references[after + 1 : end].any():
            return following
        return self._choose(count)

    def _choose(self, count: int) -> tuple[int, ...]:
        runs = self._runs()
        fitting = [run for run in runs if run[1] >= count]
        if fitting:
            first, _ = min(fitting, key=lambda run: run[1])
            return tuple(range(first, first + count))
        chosen: list[int] = []
        for first, length in sorted(runs, key=lambda run: -run[1]):
            chosen.extend(range(first, first + min(length, count - len(chosen))))
        return tuple(chosen)
