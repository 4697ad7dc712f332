"""Pages and slots: claims, references, runs."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flare.errors import CapacityError
from flare.runtime.memory.pages import Pages
from flare.runtime.memory.slots import Slots


class PagesMachine(RuleBasedStateMachine):
    """Any order of claims, shares and releases, against a plain count per page."""

    @initialize(total=st.integers(1, 40))
    def start(self, total: int) -> None:
        self.pages = Pages(total)
        self.held: list[tuple[int, ...]] = []

    @rule(count=st.integers(1, 12))
    def take(self, count: int) -> None:
        counts = self.counts()
        if count > self.pages.free:
            with pytest.raises(CapacityError):
                self.pages.take(count)
            return
        taken = self.pages.take(count)
        assert len(set(taken)) == count and all(page not in counts for page in taken)
        self.held.append(taken)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        pages = data.draw(st.sampled_from(self.held))
        self.pages.share(pages)
        self.held.append(pages)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pages.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "pages"):
            self.pages.check()
            counts = self.counts()
            assert self.pages.free == self.pages.total - len(counts)
            assert all(self.pages.references(page) == counts.get(page, 0) for page in range(self.pages.total))

    def counts(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for pages in self.held:
            for page in pages:
                counts[page] = counts.get(page, 0) + 1
        return counts


TestPages = PagesMachine.TestCase
TestPages.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_pages_follow_each_other_where_a_run_is_free():
    pages = Pages(10)
    first, _second, _third = pages.take(2), pages.take(3), pages.take(2)
    pages.release(first)
    assert pages.take(3) == (7, 8, 9)  # not 0, 1 and something far away
    assert pages.take(2) == (0, 1)


def test_the_shortest_run_that_fits_is_used():
    pages = Pages(12)
    parts = [pages.take(count) for count in (4, 1, 2, 1, 4)]
    for part in parts[::2]:
        pages.release(part)
    assert pages.take(2) == parts[2]


def test_without_a_run_the_longest_pieces_are_joined():
    pages = Pages(7)
    parts = [pages.take(count) for count in (1, 1, 3, 1, 1)]
    for part in parts[::2]:
        pages.release(part)
    assert pages.take(4)[:3] == parts[2]


def test_a_page_cannot_be_released_twice():
    pages = Pages(2)
    taken = pages.take(1)
    pages.release(taken)
    with pytest.raises(AssertionError, match="more often"):
        pages.release(taken)


def test_every_holder_of_a_slot_has_its_own_generation():
    slots = Slots(2)
    seen = set()
    for _ in range(5):
        slot, generation = slots.take()
        assert (slot, generation) not in seen
        seen.add((slot, generation))
        slots.release(slot)
    assert slots.free == 2
