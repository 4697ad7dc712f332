"""The operator timings of Qwen3.8: every case runs, and says what it moves."""

from flare.bench.gpu.qwen38 import TINY, qwen38_operator_times


def test_every_operator_of_a_layer_is_timed() -> None:
    found = qwen38_operator_times("cpu", TINY, replays=1)
    names = " ".join(entry["case"] for entry in found)
    for operator in (
        "verify",
        "commit",
        "boundary",
        "conv",
        "prefill",
        "experts",
        "select",
        "attend",
        "absorb",
        "n-gram",
    ):
        assert operator in names
    assert all(entry["us"] > 0 for entry in found)
    assert any(entry["bytes"] and entry["terabytes_per_s"] > 0 for entry in found)
