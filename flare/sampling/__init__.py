"""Randomness of requests: which draws belong to which decision."""

from flare.sampling.domains import PROPOSALS_PER_ROUND, STRIDES, Domain, offset, proposal_event

__all__ = ["PROPOSALS_PER_ROUND", "STRIDES", "Domain", "offset", "proposal_event"]
