"""What the target law reads: the rows of one round, and the policy of every request slot.

B lanes, W rows per lane, V vocabulary, S request slots; tables hold S + 1 slots, the last is the null slot.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LawRows:
    """The rows of one round, seen from the sampler.

    Attributes:
        tokens: [B, W] int64, each row's input: the pending token, then the drafts. V (the marker) where no draft is.
        length: [B] int64, valid drafts c in 0..W-1; rows after c are never consulted.
        live: [B] bool; a dead lane's law is a point mass on id 0.
        slots: [B] int64, each lane's row in the policy tables.
        masks: [B, W, ceil(V / 32)] int32; token t may follow where bit t % 32 of word t // 32 is set.
        masked: [B] bool or a whole number; where it is 0 the lane's masks are not read.
    """

    tokens: Tensor
    length: Tensor
    live: Tensor
    slots: Tensor
    masks: Tensor
    masked: Tensor


@dataclass(frozen=True)
class PolicyTable:
    """Sampling policy and token counts of every slot, as tensors whose first axis is the slot (S + 1).

    Attributes:
        temperature: float32; 0 is a point mass at the argmax.
        top_p: float32; 1 is off.
        min_p: float32; 0 is off.
        repetition: float32 factor; 1 is off.
        presence: float32 subtracted once from every generated token; 0 is off.
        frequency: float32 subtracted per generated occurrence; 0 is off.
        top_k: int64; 0 is off.
        min_tokens: int64; until so many tokens are generated, none of `stops` may follow.
        generated: int64, tokens sampled so far, the pending one included.
        stops: [S + 1, 17] int64, what `min_tokens` suppresses, padded with -1.
        prompt_counts: [S + 1, V] int32.
        generated_counts: [S + 1, V] int32, the pending token included.
        bias: [S + 1, V] float32, added to the logits.
        plain: bool; no penalty and no bias in this slot, so `bias` and both counts need not be read.
    """

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    top_k: Tensor
    min_tokens: Tensor
    generated: Tensor
    stops: Tensor
    prompt_counts: Tensor
    generated_counts: Tensor
    bias: Tensor
    plain: Tensor
