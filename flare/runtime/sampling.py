"""What a caller asks of one request: the sampling group of the configuration, plus what only a request can say."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any, Protocol, TypeGuard

from flare.contract.policies import BIAS_ENTRIES, STOP_IDS, SamplingPolicy
from flare.errors import RequestError
from flare.runtime.constraints.wishes import FIELDS, grammar_text, wished

SEED_BITS = 63
_SMALLEST, _LARGEST = 2.0**-149, 2.0**100  # the device keeps reals, and sums of biases of one id, in float32

# name → (lowest, highest, what to say); None is unbounded
_REALS: dict[str, tuple[float, float | None, str]] = {
    "temperature": (0.0, None, "0 (greedy) or more"),
    "top_p": (0.0, 1.0, "more than 0, at most 1 (1 keeps all)"),
    "min_p": (0.0, 1.0, "from 0 (keeps all) to 1"),
    "repetition_penalty": (0.0, None, "more than 0 (1 changes nothing)"),
    "presence_penalty": (-2.0, 2.0, "from -2 to 2"),
    "frequency_penalty": (-2.0, 2.0, "from -2 to 2"),
}
_POSITIVE = ("top_p", "repetition_penalty")
_COUNTS: dict[str, tuple[int, str]] = {
    "top_k": (0, "0 (keeps all) or more"),
    "seed": (0, "from 0 to 2**63 - 1"),
    "n": (1, "1 or more"),
    "max_tokens": (1, "1 or more"),
    "min_tokens": (0, "0 or more"),
    "logprobs": (0, "0 (the chosen token only) or more"),
    "prompt_logprobs": (0, "0 (the prompt's own tokens only) or more"),
    "max_draft_tokens": (0, "0 (no drafts) or more"),
}


class Limits(Protocol):
    """What a core allows one request."""

    @property
    def vocab(self) -> int: ...
    @property
    def logprobs(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample one request; a field left None takes the recipe's default.

    Attributes:
        temperature: 0 is greedy. top_k: 0 keeps all. top_p, min_p: 1 and 0 keep all.
        logit_bias: token id (or its digits) → what to add to its logit.
        seed: 63 bits; unset draws one at random. Completion i of `n` uses seed + i.
        max_tokens: most generated tokens; unset or larger than the context allows: what the context leaves.
        min_tokens: end-of-text, stop ids and stop strings cannot end the request before that many tokens. A grammar
            that allows nothing more ends it all the same.
        stop: strings that end the request where the first of them completes; they are not part of the text.
        stop_token_ids: ids that end the request like the end-of-text id, which `ignore_eos` turns off.
        logprobs: alternatives to report beside each token's own log-probability; unset reports none.
        prompt_logprobs: the same for the tokens of the prompt.
        grammar, json_schema, json_object, regex: what the text must follow, one of them at most: a Lark grammar, a JSON
            schema (an object, or its JSON text), any JSON object, a regular expression for the whole text.
        constrain_after: a marker, `</think>` say: the constraint begins with the first token after it.
        cache_salt: only requests with the same salt share cached prefixes and copied history.
        speculation: False offers no drafts of any source. max_draft_tokens: most drafts in one round.

    Raises:
        RequestError: a value outside its range, by name.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[Any, float] | None = None
    seed: int | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str | None = None
    json_schema: Any = None
    json_object: bool | None = None
    regex: str | None = None
    constrain_after: str | None = None
    cache_salt: str | None = None
    speculation: bool | None = None
    max_draft_tokens: int | None = None

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check_collections(self)
        for name in ("ignore_eos", "json_object", "speculation"):
            if getattr(self, name) not in (True, False, None):
                raise _refusal(name, getattr(self, name), "true or false")
        if None not in (self.min_tokens, self.max_tokens) and self.min_tokens > self.max_tokens:  # type: ignore[operator]
            raise _refusal("min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})")
        for name in ("constrain_after", "cache_salt"):
            if (value := getattr(self, name)) is not None and (not isinstance(value, str) or not value):
                raise _refusal(name, value, "a text that is not empty")
        grammar_text(self)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, however they were given."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def over(self, defaults: object) -> "Sampling":
        """These wishes where set, else those of a section with fields of the same names.

        A constraint of the request takes the place of the section's, whatever kind it is.
        """
        unset = [item.name for item in fields(self) if getattr(self, item.name) is None]
        if wished(self):
            unset = [name for name in unset if name not in FIELDS]
        return replace(self, **{name: getattr(defaults, name, None) for name in unset})

    def completions(self) -> tuple["Sampling", ...]:
        """One Sampling for each of the `n` completions; a given seed counts up from one to the next."""
        if self.seed is None:
            return (replace(self, n=1),) * (self.n or 1)
        return tuple(replace(self, n=1, seed=(self.seed + i) % 2**SEED_BITS) for i in range(self.n or 1))

    def policy(self, limits: Limits, eos_ids: Sequence[int], room_tokens: int) -> SamplingPolicy:
        """Resolve to what the device holds.

        Args:
            room_tokens: what the context leaves for generated tokens.

        Raises:
            RequestError: an id outside the vocabulary, or more entries than the device can hold.
        """
        max_tokens = min(self.max_tokens or room_tokens, room_tokens)
        top = -1 if self.logprobs is None else self.logprobs
        if top > limits.logprobs:
            raise _refusal("logprobs", top, f"at most {limits.logprobs}")
        return SamplingPolicy(
            temperature=_given(self.temperature, 1.0),
            top_k=self.top_k or 0,
            top_p=_given(self.top_p, 1.0),
            min_p=_given(self.min_p, 0.0),
            repetition=_given(self.repetition_penalty, 1.0),
            presence=_given(self.presence_penalty, 0.0),
            frequency=_given(self.frequency_penalty, 0.0),
            seed=secrets.randbits(SEED_BITS) if self.seed is None else self.seed,
            max_tokens=max_tokens,
            min_tokens=min(self.min_tokens or 0, max_tokens),
            stop_ids=self._stop_ids(eos_ids, limits.vocab),
            logit_bias=self._biases(limits.vocab),
            logprobs=top,
        )

    def _stop_ids(self, eos_ids: Sequence[int], vocab: int) -> tuple[int, ...]:
        wanted = tuple(self.stop_token_ids or ())
        _check_ids("stop_token_ids", wanted, vocab)
        ids = tuple(dict.fromkeys((() if self.ignore_eos else tuple(eos_ids)) + wanted))
        if len(ids) > STOP_IDS:
            raise RequestError(f"sampling.stop_token_ids: {len(ids)} ids end this request, at most {STOP_IDS} may.")
        return ids

    def _biases(self, vocab: int) -> tuple[tuple[int, float], ...]:
        entries = tuple((_token_id(token), float(bias)) for token, bias in (self.logit_bias or {}).items())
        _check_ids("logit_bias", [token for token, _ in entries], vocab)
        return entries


def _token_id(key: Any) -> Any:
    """JSON writes the keys of a mapping as text."""
    return int(key) if isinstance(key, str) and key.isdecimal() else key


def is_whole(value: object) -> TypeGuard[int]:
    """An integer of any kind, and no truth value."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _is_finite(value: object) -> TypeGuard[float]:
    if not hasattr(value, "__float__") or isinstance(value, bool):
        return False
    try:
        return isfinite(number := float(value)) and abs(number) <= _LARGEST  # pyright: ignore[reportArgumentType]
    except OverflowError:
        return False


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else float(value)


def _refusal(name: str, value: object, allowed: str) -> RequestError:
    return RequestError(f"sampling.{name}={value!r} is not allowed: it must be {allowed}.")


def _check_numbers(sampling: Sampling) -> None:
    for name, (lowest, highest, allowed) in _REALS.items():
        value = getattr(sampling, name)
        if value is None:
            continue
        if not _is_finite(value) or value < lowest or (highest is not None and value > highest):
            raise _refusal(name, value, allowed)
        if name in _POSITIVE and value < _SMALLEST:
            raise _refusal(name, value, allowed)
    for name, (least, allowed) in _COUNTS.items():
        value = getattr(sampling, name)
        if value is None:
            continue
        if not is_whole(value) or not least <= value < 2**SEED_BITS:
            raise _refusal(name, value, allowed)


def _check_collections(sampling: Sampling) -> None:
    stops = sampling.stop
    if stops is not None and not isinstance(stops, str | Sequence):
        raise _refusal("stop", stops, "a string or a list of strings")
    if any(not isinstance(stop, str) or not stop for stop in sampling.stops):
        raise _refusal("stop", stops, "a string or a list of strings, none of them empty")
    ids = sampling.stop_token_ids
    if ids is not None and (isinstance(ids, str) or not isinstance(ids, Sequence)):
        raise _refusal("stop_token_ids", ids, "a list of token ids")
    biases = sampling.logit_bias
    if biases is not None and not isinstance(biases, Mapping):
        raise _refusal("logit_bias", biases, "a mapping from token id to bias")
    if biases is not None and len(biases) > BIAS_ENTRIES:
        raise RequestError(f"sampling.logit_bias has {len(biases)} entries, at most {BIAS_ENTRIES} are allowed.")
    if any(not _is_finite(value) for value in (biases or {}).values()):
        raise _refusal("logit_bias", biases, "a mapping from token id to a bias that float32 holds")


def _check_ids(name: str, ids: Sequence[object], vocab: int) -> None:
    for token in ids:
        if not is_whole(token) or not 0 <= token < vocab:
            raise _refusal(name, token, f"ids from 0 to {vocab - 1}")
