"""A request: its tokens, what it holds while it runs, and the events its caller has not read yet."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from flare.contract.policies import SamplingPolicy
from flare.errors import FlareError
from flare.runtime.constraints.constraint import Constraint
from flare.runtime.history import ContextIndex, Response
from flare.runtime.memory.trail import Trail
from flare.runtime.results import (
    Completion,
    Event,
    FinishReason,
    Logprob,
    Round,
    Timing,
    TokenSource,
    Usage,
    summarise,
)
from flare.runtime.text import Presenter


class State(Enum):
    """Where a request stands."""

    WAITING = auto()  # for a slot and pages, for the first time or parked
    PREFILLING = auto()
    RUNNING = auto()  # has a pending token, or the launch that samples it is queued; takes part in rounds
    LEAVING = auto()  # has ended and still holds what launches in flight name
    FINISHED = auto()


@dataclass(slots=True)
class Queued:
    """The launches in flight that name a request.

    Attributes:
        launches: all of them; samplings: those that sample; rounds: those of the latter that are no prompt chunk.
        tokens: the most they can add.
    """

    launches: int = 0
    samplings: int = 0
    rounds: int = 0
    tokens: int = 0


@dataclass(eq=False, slots=True)
class Request:
    """One prompt on its way to a completion; also the handle that `Engine.submit` returns.

    Attributes:
        tokens: prompt, then generated tokens; the last generated one is pending, the others are consumed.
        draft_limit: most drafts in one round; reason: what forbids drafts, None when nothing does.
        host_stops: the text can end the request, so it must be decoded before the next round may start.
        constraint: what the text must follow; its masks need every token before them, so rounds do not overlap.
        cache_salt: only requests with the same one share cached prefixes and copied history.
        order: place in the line; a parked request keeps it.
        table: [pages_per_request] int32, `pages` and then the null page; epoch: changes whenever slot or pages do.
        queued: launches in flight that name it; parking: no launch may name it until it is parked.
        trail: what it read from the prefix cache and left there.
        ordinary_events, round_events: events its Philox domains have spent, one for each launch that sampled.
        preemptions: how often it was parked; cached_tokens: prompt tokens that were restored instead of run.
        initialised: the init graph is queued or done; prefilled_tokens: prompt tokens of which that is true.
        lost: a launch that named it failed, so what the device holds of it is not to be kept.
        error: why the request failed; no completion follows.
        prompt_logprobs: alternatives to report per prompt token, None for no report; prompt_scores: those that settled.
    """

    id: int
    tokens: list[int]
    prompt_tokens: int
    policy: SamplingPolicy
    presenter: Presenter
    draft_limit: int
    reason: str | None
    host_stops: bool
    constraint: Constraint | None = None
    cache_salt: str | None = None
    prompt_logprobs: int | None = None
    state: State = State.WAITING
    order: int = 0
    slot: int = -1
    generation: int = 0
    pages: tuple[int, ...] = ()
    table: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    epoch: int = 0
    queued: Queued = field(default_factory=Queued)
    parking: bool = False
    trail: Trail = field(default_factory=Trail)
    initialised: bool = False
    prefilled_tokens: int = 0
    ordinary_events: int = 0
    round_events: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    cancelled: bool = False
    lost: bool = False
    response: Response | None = None
    context: ContextIndex | None = None
    finish_reason: FinishReason | None = None
    completion: Completion | None = None
    error: FlareError | None = None
    sources: list[TokenSource] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    prompt_scores: list[Logprob | None] = field(default_factory=lambda: [None])
    events: deque[Event] = field(default_factory=deque)
    submitted_s: float = field(default_factory=perf_counter)
    first_s: float = 0.0
    last_s: float = 0.0

    @property
    def finished(self) -> bool:
        """No event will be added: there is a completion, or an error instead."""
        return self.completion is not None or self.error is not None

    @property
    def ended(self) -> bool:
        """No launch will name it again."""
        return self.cancelled or self.finish_reason is not None or self.error is not None

    @property
    def host_ended(self) -> bool:
        """The text ended it, so the device may have gone further than the tokens that were kept."""
        return self.presenter.stopped or self.text_ended

    @property
    def text_ended(self) -> bool:
        """The constraint has come to its end and the device cannot know."""
        return self.constraint is not None and self.constraint.finished

    @property
    def salt(self) -> str:
        """The key of its prefixes and of its copied history."""
        return self.cache_salt or ""

    @property
    def serial(self) -> bool:
        """Each round waits for the host to settle the one before it."""
        return self.host_stops or self.constraint is not None

    @property
    def unsampled_tokens(self) -> int:
        """Tokens that chunks consume: the prompt; of a parked request all but the pending token, which is sampled."""
        return len(self.tokens) - 1 if self.generated_tokens else self.prompt_tokens

    @property
    def generated_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def left_tokens(self) -> int:
        """Output budget left."""
        return self.policy.max_tokens + self.prompt_tokens - len(self.tokens)

    @property
    def reserved_tokens(self) -> int:
        """The most tokens whose state this request can ever need."""
        return self.prompt_tokens + self.policy.max_tokens

    def take_events(self) -> list[Event]:
        """Events since the last call, oldest first."""
        events = list(self.events)
        self.events.clear()
        return events

    def complete(self) -> Completion:
        """The completion of a request that has ended."""
        assert self.finish_reason is not None
        generated = tuple(self.tokens[self.prompt_tokens :])
        decode_s = self.last_s - self.first_s
        started_s = self.first_s - self.submitted_s if generated else 0.0
        speed = (len(generated) - 1) / decode_s if len(generated) > 1 and decode_s > 0 else 0.0
        return Completion(
            text=self.presenter.text,
            token_ids=generated,
            finish_reason=self.finish_reason,
            usage=Usage(self.prompt_tokens, len(generated), self.cached_tokens),
            speculation=summarise(self.rounds, self.reason),
            rounds=tuple(self.rounds),
            sources=tuple(self.sources),
            timing=Timing(started_s, decode_s, speed),
            logprobs=tuple(self.logprobs) if self.policy.logprobs >= 0 else None,
            prompt_logprobs=tuple(self.prompt_scores) if self.prompt_logprobs is not None else None,
        )
