"""A request's sampling policy as the device holds it: every number resolved, nothing optional."""

from dataclasses import dataclass, field

STOP_IDS = 17  # one EOS and sixteen stop ids
BIAS_ENTRIES = 1024  # sparse logit-bias entries one request may carry


@dataclass(frozen=True)
class SamplingPolicy:
    """What one request's law and limits are.

    Attributes:
        temperature: 0 is the point mass at the argmax.
        top_k: 0 keeps all; top_p: 1 keeps all; min_p: 0 keeps all.
        repetition, presence, frequency: penalties; 1, 0, 0 change nothing.
        seed: 64 bits of the request's Philox key, as a non-negative int64.
        max_tokens: most generated tokens, already bounded by the context.
        min_tokens: stops stay impossible before that many generated tokens.
        stop_ids: ids that end the request on the device (EOS included unless ignored), at most `STOP_IDS`.
        logit_bias: (token id, bias) pairs, at most `BIAS_ENTRIES`.
        logprobs: alternatives to report per token; -1 reports nothing, 0 the chosen token only.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    seed: int = 0
    max_tokens: int = 1
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = field(default=())
    logprobs: int = -1

    @property
    def plain(self) -> bool:
        """True when neither bias nor penalty can move a logit, so implementations may skip the tables."""
        return not self.logit_bias and (self.repetition, self.presence, self.frequency) == (1.0, 0.0, 0.0)
