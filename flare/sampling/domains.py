"""Which Philox offsets belong to which decision of a request.

A request has one 64-bit seed and subsequence 0. Its offsets are split into domains, each a run of fixed strides, so no
two decisions ever read the same draw, whatever widths its rounds had:

    offset = (domain << 60) + event * stride

Events are counted per executed round of a live lane, never per emitted token.
"""

from enum import IntEnum
from typing import TypeVar

from torch import Tensor

Event = TypeVar("Event", int, Tensor)

PROPOSALS_PER_ROUND = 7  # KMAX: the deepest draft of any recipe, whatever is captured


class Domain(IntEnum):
    """What a draw decides."""

    ORDINARY = 0  # one-token sampling, and the first token after prefill or a prefix hit; event: samples made
    PROPOSAL = 1  # the drafter's own draws; event: `proposal_event`
    VERIFY = 2  # accept, correction and bonus; event: rounds executed
    SPARE = 3  # selectors that need draws of their own; event: calls


# Draws reserved per event, by domain: multiples of 4 stay on Philox block borders; 16 >= PROPOSALS_PER_ROUND + 2.
STRIDES = (4, 4, 16, 4)


def offset(domain: Domain, event: Event) -> Event:
    """First draw of an event, in single uniforms; ints or int64 tensors, never negative below 2^56 events."""
    return (int(domain) << 60) + event * STRIDES[domain]


def proposal_event(round_index: Event, draft_index: int) -> Event:
    """Event of draft `draft_index` in 0..6 of a round: skipped drafts skip their events, they are never reused."""
    return round_index * PROPOSALS_PER_ROUND + draft_index
