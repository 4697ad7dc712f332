"""CPU log-probabilities: only lanes that asked are touched."""

import torch
from torch import Tensor


def report_logprobs(
    logits: Tensor, tokens: Tensor, kept: Tensor, wanted: Tensor, slots: Tensor, values: Tensor, ids: Tensor
) -> None:
    """See the card."""
    for lane, count in enumerate(wanted.tolist()):
        rows = int(kept[lane].sum())
        if count < 0 or rows == 0:
            continue
        law = torch.log_softmax(logits[lane, :rows], -1)
        emitted, slot = tokens[lane, :rows, None], int(slots[lane])
        values[slot, :rows, :1], ids[slot, :rows, :1] = law.gather(1, emitted), emitted
        if count:
            likeliest = law.topk(count)
            values[slot, :rows, 1 : 1 + count], ids[slot, :rows, 1 : 1 + count] = likeliest.values, likeliest.indices
