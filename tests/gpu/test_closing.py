"""On a CUDA device: a closed core leaves no memory behind, whoever still holds it."""

import pytest
import torch

from flare.bench.gpu.visit import Visit
from flare.build import build
from flare.errors import RequestError

pytestmark = pytest.mark.gpu

SLACK_BYTES = 32 << 20  # what kernels and libraries keep for themselves


@pytest.fixture
def config(tmp_path):
    return Visit(tmp_path, dry=False, weights=None).smollm2_config(
        "preparation.context_length=512", "serving.mtp_draft_tokens=1"
    )


def test_two_points_of_a_sweep_peak_like_one(config):
    peaks, left, held = [], [], []
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        core = build(config)
        peaks.append(torch.cuda.max_memory_reserved())
        core.close()
        held.append(core)  # a closed core that somebody keeps must not keep its memory
        left.append(torch.cuda.memory_reserved())
    # The first point also compiles and loads; the later ones must not add to each other.
    assert abs(peaks[2] - peaks[1]) <= SLACK_BYTES
    assert left[2] - left[0] <= SLACK_BYTES


def test_a_closed_core_refuses_an_engine(config):
    core = build(config)
    core.close()
    core.close()
    with pytest.raises(RequestError, match="closed"):
        core.device.attach()
