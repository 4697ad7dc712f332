"""A request: its tokens, what it holds while it runs, and the events its caller has not read yet."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from flare.contract.policies import SamplingPolicy
from flare.errors import FlareError
from flare.runtime.history import ContextIndex, Response
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

    WAITING = auto()  # for a slot and pages
    PREFILLING = auto()
    RUNNING = auto()  # has a pending token, takes part in rounds
    FINISHED = auto()


@dataclass(eq=False, slots=True)
class Request:
    """One prompt on its way to a completion; also the handle that `Engine.submit` returns.

    Attributes:
        tokens: prompt, then generated tokens; the last generated one is pending, the others are consumed.
        draft_limit: most drafts in one round; reason: what forbids drafts, None when nothing does.
        host_stops: the text can end the request, so it must be decoded before the next round may start.
        table: [pages_per_request] int32, `pages` and then the null page.
        initialised: the init graph is queued or done; prefilled_tokens: prompt tokens of which that is true.
        error: why the request failed; no completion follows.
    """

    id: int
    tokens: list[int]
    prompt_tokens: int
    policy: SamplingPolicy
    presenter: Presenter
    draft_limit: int
    reason: str | None
    host_stops: bool
    state: State = State.WAITING
    slot: int = -1
    generation: int = 0
    pages: tuple[int, ...] = ()
    table: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    initialised: bool = False
    prefilled_tokens: int = 0
    cancelled: bool = False
    response: Response | None = None
    context: ContextIndex | None = None
    finish_reason: FinishReason | None = None
    completion: Completion | None = None
    error: FlareError | None = None
    sources: list[TokenSource] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
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
    def generated_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def left_tokens(self) -> int:
        """Output budget left."""
        return self.policy.max_tokens - self.generated_tokens

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
            usage=Usage(self.prompt_tokens, len(generated)),
            speculation=summarise(self.rounds, self.reason),
            rounds=tuple(self.rounds),
            sources=tuple(self.sources),
            timing=Timing(started_s, decode_s, speed),
            logprobs=tuple(self.logprobs) if self.policy.logprobs >= 0 else None,
        )
