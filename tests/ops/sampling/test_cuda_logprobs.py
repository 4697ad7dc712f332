"""Log-probabilities on CUDA: the CPU's numbers where asked for, nothing touched elsewhere."""

import pytest
import torch
from torch import Tensor

from flare.ops.logprobs import cpu, cuda
from tests.ops.sampling.device import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")
LANES, WIDTH, SLOTS, ALTERNATIVES = 4, 3, 5, 6


def reports(logits: Tensor, wanted: list[int], kept: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Outputs [S + 1, W + 1, 1 + n] of both implementations, filled with −7 before."""
    tokens = torch.randint(0, logits.shape[-1], (LANES, WIDTH), generator=torch.Generator().manual_seed(2))
    found = []
    for operator, device in ((cuda, DEVICE), (cpu, "cpu")):
        values = torch.full((SLOTS + 1, WIDTH + 1, 1 + ALTERNATIVES), -7.0, device=device)
        ids = torch.full(values.shape, -7, device=device)
        inputs = (logits, tokens, kept, torch.tensor(wanted), torch.tensor([4, 1, 0, 3]))
        operator.report_logprobs(*(x.to(device) for x in inputs), values, ids)
        found.append((values.cpu(), ids.cpu()))
    return found


@pytest.mark.parametrize("vocab", [37, 2048, 5003])
def test_what_was_asked_for_equals_the_cpu_and_nothing_else_is_written(vocab: int):
    logits = 3 * torch.randn(LANES, WIDTH, vocab, generator=torch.Generator().manual_seed(vocab))
    kept = torch.arange(WIDTH) < torch.tensor([3, 2, 0, 1])[:, None]
    got, want = reports(logits, [6, -1, 3, 0], kept)
    assert torch.equal(got[1], want[1])
    torch.testing.assert_close(got[0], want[0], rtol=1e-6, atol=1e-5)


def test_equal_logits_come_by_ascending_id():
    logits = torch.zeros(LANES, WIDTH, 3000)
    logits[..., 2999] = logits[..., 40] = logits[..., 41] = 2.0
    (_, ids), _ = reports(logits, [6, -1, -1, -1], torch.ones(LANES, WIDTH, dtype=torch.bool))
    assert ids[4, 0, 1:].tolist() == [40, 41, 2999, 0, 1, 2]


def test_logits_of_lanes_that_did_not_ask_are_not_read():
    logits = torch.full((LANES, WIDTH, 100), torch.nan)
    logits[0] = 0.0
    (values, _), _ = reports(logits, [2, -1, -1, -1], torch.ones(LANES, WIDTH, dtype=torch.bool))
    assert not values.isnan().any()
