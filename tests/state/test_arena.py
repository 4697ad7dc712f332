"""A whole core holds exactly the bytes its plan named, item by item; packed weights stay under their bound."""

from collections import defaultdict

import pytest
import torch

from flare import ops
from flare.build import load, plan_parts
from flare.checkpoint.source import opened
from flare.config.compose import compose
from flare.ops.linear.cpu import packed_bytes
from tests.recipes.tiny_core import tiny_overrides


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_every_planned_item_is_what_was_allocated(tmp_path, dtype):
    config = compose("smollm2", [*tiny_overrides(tmp_path), f"preparation.dtype={dtype}", "serving.concurrency=3"])
    parts = plan_parts(config)
    storage = load(parts, opened(tmp_path), ops.load("cpu"), "dense")
    held = {name: tensor.untyped_storage().nbytes() for name, tensor in {**storage.weights, **storage.state}.items()}
    items = parts.plan.memory.items
    exact: dict[str, int] = defaultdict(int)
    for item in items:
        if item.kind not in ("opaque", "frame"):
            exact[item.name] += item.bytes  # requests and snapshots are rows of one tensor
    assert held == exact
    assert {item.name for item in items if item.kind == "snapshot"} == {"requests.feedback", "requests.output"}
    opaque = {item.name: item.bytes for item in items if item.kind == "opaque"}
    assert set(opaque) == set(storage.linears)
    for name, bound in opaque.items():
        assert 0 < packed_bytes(storage.linears[name]) <= bound, name


def test_pages_by_head_look_like_pages_of_tokens(tmp_path):
    config = compose("smollm2", tiny_overrides(tmp_path))
    parts = plan_parts(config)
    keys = load(parts, opened(tmp_path), ops.load("cpu"), "dense").state["layers.0.keys"]
    assert keys.shape == (parts.plan.memory.pages + 1, 64, 2, 8)
    assert keys[3:5].flatten(0, 1).transpose(0, 1).stride() == (keys.shape[0] * 64 * 8, 8, 1)
    assert keys.dtype == torch.float32
