"""Operators of sampling: the target law, chain verification, and the Philox draws both read."""

from flare.ops.sampling.chain import DraftLaw
from flare.ops.sampling.tables import LawRows, PolicyTable

__all__ = ["DraftLaw", "LawRows", "PolicyTable"]
