"""From what a caller hands over to requests: prompts become ids, wishes become policies, limits are checked."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import SupportsIndex

from flare.config.config import Config
from flare.contract.manifest import Extent
from flare.contract.policies import SamplingPolicy
from flare.contract.vocabulary import Vocabulary
from flare.errors import RequestError
from flare.runtime.catalog import Catalog
from flare.runtime.constraints import AfterMarker, Constraint, Grammars, grammar_text
from flare.runtime.requests import Request
from flare.runtime.sampling import Sampling, is_whole
from flare.runtime.text import Presenter

NO_SOURCES = "serving.history_drafts and serving.context_drafts are off"

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
        self._learned = catalog.learned
        self._scored = catalog.scored
        self._grammars = Grammars(vocabulary, max(extent.vocab, vocabulary.size))
        self._ids = count(1)

    def requests(self, prompt: Prompt, sampling: Sampling) -> tuple[Request, ...]:
        """One request for each of the `n` completions.

        Raises:
            RequestError: what this core cannot serve, in one sentence.
        """
        tokens = self._token_ids(prompt)
        wishes = sampling.over(self._defaults)
        return tuple(self._request(tokens, single) for single in wishes.completions())

    def load_grammars(self) -> None:
        """Load what every constraint needs; raises RequestError where none can be followed."""
        self._grammars.load()

    def compile(self, sampling: Sampling) -> None:
        """Compile and keep the constraint of a sampling, if it or the defaults have one; for any thread.

        Raises:
            RequestError: it cannot be followed.
        """
        wish = grammar_text(sampling.over(self._defaults))
        if wish is not None:
            self._grammars.compile(wish)

    def _request(self, tokens: list[int], sampling: Sampling) -> Request:
        policy = sampling.policy(self._extent, self._vocabulary.eos_ids, self._extent.context - len(tokens))
        constraint = self._constraint(sampling, policy)
        reason, draft_limit = self._core_reason(constraint), self._extent.width - 1
        if sampling.speculation is not None and not sampling.speculation:
            reason = reason or "speculation: false"
        elif sampling.max_draft_tokens is not None:
            draft_limit = min(draft_limit, sampling.max_draft_tokens)
            reason = reason or (None if draft_limit else "max_draft_tokens: 0")
        draft_limit = 0 if reason else draft_limit
        if constraint is not None and self._learned:
            reason = reason or "a grammar is drafted for by copies and forced tokens only"
        return Request(
            id=next(self._ids),
            tokens=list(tokens),
            prompt_tokens=len(tokens),
            policy=policy,
            presenter=Presenter(self._vocabulary.stream(), sampling.stops, policy.min_tokens),
            draft_limit=draft_limit,
            reason=reason,
            host_stops=bool(sampling.stops),
            constraint=constraint,
            cache_salt=sampling.cache_salt,
            prompt_logprobs=self._prompt_logprobs(sampling),
        )

    def _constraint(self, sampling: Sampling, policy: SamplingPolicy) -> Constraint | None:
        """What the request's text must follow, compiled.

        Raises:
            RequestError: a grammar that cannot be followed, or a marker without one.
        """
        wish, marker = grammar_text(sampling), sampling.constrain_after
        if wish is None:
            if marker is not None:
                raise RequestError(
                    f"sampling.constrain_after={marker!r} needs what begins after it: set grammar, json_schema, "
                    "json_object or regex."
                )
            return None
        matcher = self._grammars.matcher(wish)
        if policy.min_tokens and matcher.at_end:
            raise RequestError(
                f"sampling.{wish.field} allows only the empty text, but sampling.min_tokens={policy.min_tokens}."
            )
        if marker is not None:
            matcher = AfterMarker(matcher, marker.encode(), self._grammars.spelling)
        return Constraint(matcher, policy.stop_ids, policy.min_tokens)

    def _core_reason(self, constraint: Constraint | None) -> str | None:
        """Why this core cannot draft for the request: forced tokens need no copy source."""
        without_sources = self._reason == NO_SOURCES and constraint is not None
        return None if without_sources else self._reason

    def _prompt_logprobs(self, sampling: Sampling) -> int | None:
        top = sampling.prompt_logprobs
        if top is None:
            return None
        if not self._scored:
            raise RequestError(
                "sampling.prompt_logprobs needs a core that can score prompts: set preparation.prompt_logprobs=true."
            )
        if top > self._extent.logprobs:
            raise RequestError(f"sampling.prompt_logprobs={top} is not allowed: at most {self._extent.logprobs}.")
        return top

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
        return NO_SOURCES
    return None
