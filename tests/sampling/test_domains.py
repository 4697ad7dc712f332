"""Offsets of a request's decisions never meet."""

import torch

from flare.sampling import PROPOSALS_PER_ROUND, STRIDES, Domain, offset, proposal_event

DRAWS = {Domain.ORDINARY: 1, Domain.PROPOSAL: 1, Domain.VERIFY: PROPOSALS_PER_ROUND + 2, Domain.SPARE: 4}


def test_no_draw_is_read_twice_by_any_two_events():
    used: set[int] = set()
    for domain, draws in DRAWS.items():
        for event in [*range(300), 2**55, 2**55 + 1]:
            drawn = {offset(domain, event) + i for i in range(draws)}
            assert not used & drawn
            used |= drawn


def test_proposal_events_of_rounds_are_disjoint():
    events = [proposal_event(r, i) for r in range(50) for i in range(PROPOSALS_PER_ROUND)]
    assert events == list(range(50 * PROPOSALS_PER_ROUND))


def test_tensors_and_ints_give_the_same_non_negative_offsets():
    events = torch.tensor([0, 1, 77, 2**54])
    for domain in Domain:
        got = offset(domain, events)
        assert got.dtype == torch.int64
        assert got.tolist() == [offset(domain, int(e)) for e in events]
        assert (got >= 0).all()


def test_strides_stay_on_philox_blocks():
    assert all(stride % 4 == 0 for stride in STRIDES)
    assert len(STRIDES) == len(Domain)
