"""Pages and snapshot rows as a device holds them: hashes of the prefixes they stand for.

Entry p of a page is the hash of the prefix that ends with token p; entry p of its pairs, which a learned drafter
writes, is the hash that token p + 1 ends. What was freed is poisoned, so whoever still reads it is found.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flare.bench.simulation.scripted.faults import require
from flare.contract.manifest import PAGE_TOKENS

POISON = -77


class Snapshot(NamedTuple):
    """A row of slot state behind the null slot: the prefix hash after `consumed` tokens."""

    state: int
    consumed: int


class Storage:
    """What the device owns beside its request table."""

    def __init__(self, pages: int) -> None:
        self.null_page = pages
        self._tokens = [[POISON] * PAGE_TOKENS for _ in range(pages)]
        self._pairs = [[POISON] * PAGE_TOKENS for _ in range(pages)]
        self.snapshots: dict[int, Snapshot] = {}

    def poison(self, pages: Iterable[int], rows: Iterable[int]) -> None:
        """Make what nobody holds unreadable; the host knows which that is."""
        for page in pages:
            self._tokens[page] = [POISON] * PAGE_TOKENS
            self._pairs[page] = [POISON] * PAGE_TOKENS
        for row in rows:
            self.snapshots.pop(row, None)

    def garble(self, table: Sequence[int], begin: int, end: int) -> None:
        """Entries begin..end − 1 stand for nothing."""
        for place in range(begin, end):
            self._tokens[table[place // PAGE_TOKENS]][place % PAGE_TOKENS] = POISON

    def copy(self, source: int, target: int) -> None:
        """One page to another, in every paged tensor."""
        self._tokens[target] = list(self._tokens[source])
        self._pairs[target] = list(self._pairs[source])

    def write(self, table: Sequence[int], chain: Sequence[int], begin: int, end: int) -> None:
        """Entries begin..end − 1 of a request with these prefix hashes."""
        _write(self._tokens, table, chain, range(begin, end), 1)

    def write_pairs(self, table: Sequence[int], chain: Sequence[int], begin: int, end: int) -> None:
        """Pairs begin..end − 1."""
        _write(self._pairs, table, chain, range(begin, end), 2)

    def holds(self, page: int, hashes: Sequence[int]) -> bool:
        """Whether a page begins with these entries."""
        return self._tokens[page][: len(hashes)] == list(hashes)

    def read(self, table: Sequence[int], chain: Sequence[int], length: int) -> None:
        """Require entries 0..length − 1 to stand for these prefixes."""
        _read(self._tokens, table, chain, length, 1)

    def read_pairs(self, table: Sequence[int], chain: Sequence[int], length: int) -> None:
        """Require pairs 0..length − 1 to stand for these prefixes."""
        _read(self._pairs, table, chain, length, 2)


def _write(storage: list[list[int]], table: Sequence[int], chain: Sequence[int], places: range, shift: int) -> None:
    null_page = len(storage)
    for place in places:
        page = table[place // PAGE_TOKENS]
        require(page < null_page, f"position {place} has no page")
        storage[page][place % PAGE_TOKENS] = chain[place + shift]


def _read(storage: list[list[int]], table: Sequence[int], chain: Sequence[int], length: int, shift: int) -> None:
    null_page = len(storage)
    for index in range(-(-length // PAGE_TOKENS)):
        begin = index * PAGE_TOKENS
        count = min(PAGE_TOKENS, length - begin)
        page = table[index]
        require(page < null_page, f"page {index} of a committed prefix is not in the table")
        held = storage[page] if count == PAGE_TOKENS else storage[page][:count]
        if held != chain[begin + shift : begin + shift + count]:
            wrong = next(i for i in range(count) if held[i] != chain[begin + shift + i])
            what = "was freed" if held[wrong] == POISON else "holds another prefix"
            require(False, f"page {page}, position {begin + wrong} of {length}, {what}")
