"""Observations as a measurement would make them, for tests of what is drawn from them."""

from typing import Any

from flare.bench.paired import Observation


def observed(arm: str, block: int, place: int, speed: float, **changes: Any) -> Observation:
    """One answer of ten tokens in five rounds."""
    known: dict[str, Any] = {
        "setting": "recipe sampling",
        "category": "chat",
        "entry": "kettle",
        "turn": 1,
        "width": "plain" if arm == "plain" else "adaptive",
        "copies": "none" if arm == "plain" else "history",
        "seed": 1,
        "prompt_tokens": 30,
        "tokens": 10,
        "tokens_per_s": speed,
        "tpot_ms": 1e3 / speed,
        "rounds": ((1, 0, 0, 1, 0.02),) * 5,
    }
    return Observation(arm=arm, block=block, place=place, **(known | changes))
