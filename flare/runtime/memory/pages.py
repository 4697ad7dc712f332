"""Page ids with reference counts, handed out in consecutive runs where that is possible."""

from collections.abc import Iterable

import numpy as np

from flare.errors import CapacityError


class Pages:
    """The pool of page ids 0..total-1.

    A page is free when nobody refers to it. A request takes every page it can ever need when it is admitted, so a round
    never waits for memory and admission cannot deadlock.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self._references = np.zeros(total, np.int32)

    def take(self, count: int) -> tuple[int, ...]:
        """Claim `count` free pages, each with one reference.

        The shortest free run that holds all of them is used; without one, the longest runs: a request whose pages
        follow each other is read by attention as one view instead of a gather.

        Raises:
            CapacityError: fewer than `count` pages are free; nothing is taken.
        """
        if count > self.free:
            raise CapacityError(f"{count} pages are needed, but {self.free} of {self.total} are free.")
        pages = self._choose(count)
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
            self.free += int(self._references[page] == 0)

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
