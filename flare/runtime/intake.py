"""From what a caller hands over to requests: prompts become ids, wishes become policies, limits are checked."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import SupportsIndex

from flare.config.config import Config
from flare.contract.manifest import Extent
from flare.contract.vocabulary import Vocabulary
from flare.errors import RequestError
from flare.runtime.catalog import Catalog
from flare.runtime.requests import Request
from flare.runtime.sampling import Sampling, is_whole
from flare.runtime.text import Presenter

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text (continued as it stands), token ids, or chat messages (given the model's own template)."""


def as_prompts(given: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
    """The prompts in order, and whether a single one was given.

    Raises:
        RequestError: an empty list, or something that is no prompt.
    """
    if isinstance(given, str):
        return [given], True
    if not isinstance(given, Sequence) or not given:
        raise RequestError(
            "A prompt is text, a list of token ids, a list of chat messages, or a non-empty list of these."
        )
    if isinstance(given[0], SupportsIndex | Mapping):
        return [given], True  # pyright: ignore[reportReturnType]
    return list(given), False  # pyright: ignore[reportReturnType]


class Intake:
    """Makes requests for one core."""

    def __init__(self, config: Config, vocabulary: Vocabulary, extent: Extent, catalog: Catalog) -> None:
        self._defaults = config.sampling
        self._vocabulary = vocabulary
        self._extent = extent
        self._reason = core_reason(config, catalog)
        self._ids = count(1)

    def requests(self, prompt: Prompt, sampling: Sampling) -> tuple[Request, ...]:
        """One request for each of the `n` completions.

        Raises:
            RequestError: what this core cannot serve, in one sentence.
        """
        tokens = self._token_ids(prompt)
        wishes = sampling.over(self._defaults)
        return tuple(self._request(tokens, single) for single in wishes.completions())

    def _request(self, tokens: list[int], sampling: Sampling) -> Request:
        policy = sampling.policy(self._extent, self._vocabulary.eos_ids, self._extent.context - len(tokens))
        reason, draft_limit = self._reason, self._extent.width - 1
        if sampling.speculation is not None and not sampling.speculation:
            reason = reason or "speculation: false"
        elif sampling.max_draft_tokens is not None:
            draft_limit = min(draft_limit, sampling.max_draft_tokens)
            reason = reason or (None if draft_limit else "max_draft_tokens: 0")
        return Request(
            id=next(self._ids),
            tokens=list(tokens),
            prompt_tokens=len(tokens),
            policy=policy,
            presenter=Presenter(self._vocabulary.stream(), sampling.stops, policy.min_tokens),
            draft_limit=0 if reason else draft_limit,
            reason=reason,
            host_stops=bool(sampling.stops),
        )

    def _token_ids(self, prompt: Prompt) -> list[int]:
        tokens = self._encoded(prompt)
        if not tokens:
            raise RequestError("The prompt has no tokens: write at least one character.")
        if len(tokens) >= self._extent.context:
            raise RequestError(
                f"The prompt has {len(tokens)} tokens, but this core's context ends at {self._extent.context} with the "
                "output included: shorten the prompt or raise preparation.context_length."
            )
        return tokens

    def _encoded(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self._vocabulary.encode(prompt)
        if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Sequence):
            raise RequestError(f"A prompt is text, token ids or chat messages, not {type(prompt).__name__}.")
        if prompt and isinstance(prompt[0], Mapping):
            return self._vocabulary.chat(prompt)  # pyright: ignore[reportArgumentType]  it checks each message
        return [self._checked(token) for token in prompt]

    def _checked(self, token: object) -> int:
        if not is_whole(token) or not 0 <= token < self._extent.vocab:
            raise RequestError(f"The prompt holds {token!r}; token ids go from 0 to {self._extent.vocab - 1}.")
        return int(token)


def core_reason(config: Config, catalog: Catalog) -> str | None:
    """Why no request of this core can draft; None when they can."""
    serving = config.serving
    if serving.mtp_draft_tokens == 0:
        return "serving.mtp_draft_tokens=0"
    if serving.fixed_width == 1:
        return "serving.fixed_width=1"
    if max(max(widths) for widths in catalog.widths.values()) == 1:
        return "no round wider than one is prepared"
    if not (catalog.learned or serving.history_drafts or serving.context_drafts):
        return "serving.history_drafts and serving.context_drafts are off"
    return None
