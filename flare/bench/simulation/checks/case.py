"""A case: one request beside the truth it must follow, token by token, to the end its policy sets."""

from flare.bench.simulation.core import letter
from flare.bench.simulation.scripted import ContractError, Truth
from flare.bench.simulation.scripted.faults import require
from flare.bench.simulation.workload import Wish
from flare.runtime.requests import Request, State
from flare.runtime.results import Completion, FinishReason

STANDSTILL = 64  # launches without a token for a request that runs: some twenty times what a full house needs


class Case:
    """What a request may say next, and whether what it says is that.

    Attributes:
        cancelled: its sender has left; events: read so far.
        due: launches by which it must have finished.
    """

    def __init__(self, handle: Request, wish: Wish, truth: Truth, due: int) -> None:
        self.handle, self.wish, self.due = handle, wish, due
        self.cancelled = False
        self.events = 0
        self.ended: FinishReason | None = None
        self._truth = truth
        self._prefix, self._last = truth.chain(wish.prompt)[-1], wish.prompt[-1]
        self._known = len(wish.prompt)
        self._text: list[str] = []
        self._told: list[int] = []
        self._told_text: list[str] = []
        self._standing: tuple[int, int, State] = (0, 0, State.WAITING)
        self._moved = 0

    def check_progress(self, launches: int) -> None:
        """Require the request to move on, and to be done when it is due.

        Args:
            launches: submitted to the device so far.
        """
        handle = self.handle
        require(launches <= self.due, f"request {handle.id} starves: it should have ended long ago")
        standing = (len(handle.tokens), handle.prefilled_tokens, handle.state)
        if standing != self._standing or handle.state is not State.RUNNING:
            self._standing, self._moved = standing, launches
        require(launches - self._moved <= STANDSTILL, f"request {handle.id} starves while it runs")

    @property
    def leaves(self) -> bool:
        """The sender has read all it wants of the stream."""
        patience = self.wish.leaves_after
        return patience is not None and self.events >= patience and not self.cancelled

    def follow(self) -> None:
        """Hold the tokens and events since the last call against the truth."""
        tokens = self.handle.tokens
        while self._known < len(tokens):
            self._accept(tokens[self._known])
        self._check_copies()
        for event in self.handle.take_events():
            self.events += 1
            self._told += event.token_ids
            self._told_text.append(event.text)

    def finish(self, lost: bool, restored: int) -> None:
        """Hold a finished request's completion against everything that was followed.

        Args:
            lost: the device was told to lose it; restored: tokens the device gave it from a snapshot.
        """
        self.follow()
        handle, done = self.handle, self.handle.completion
        if handle.error is not None:
            require(lost, f"request {handle.id} failed without a failure: {handle.error}")
            return
        require(done is not None, f"request {handle.id} has neither a completion nor an error")
        assert done is not None
        if done.finish_reason == "cancelled":
            require(self.cancelled or lost, f"request {handle.id} was cancelled by nobody")
        else:
            require(done.finish_reason == self.ended, f"{handle.id} ends by {done.finish_reason}, not {self.ended}")
            cached = done.usage.cached_tokens
            require(handle.preemptions > 0 or cached == restored, f"{cached} cached tokens, {restored} were restored")
        self._check_completion(done)

    def _check_copies(self) -> None:
        """What drafts are copied from holds settled tokens and no others."""
        response, context, tokens = self.handle.response, self.handle.context, self.handle.tokens
        if response is not None:
            generated = len(tokens) - len(self.wish.prompt)
            require(response.tokens == tokens[len(tokens) - min(generated, 8) :], "the history holds other tokens")
        if context is not None:
            require(len(context) == len(tokens), "the context holds other tokens")

    def _check_completion(self, done: Completion) -> None:
        generated = list(done.token_ids)
        count, prompt = len(generated), len(self.wish.prompt)
        require(generated == self.handle.tokens[prompt:], "the completion's ids are not those that were settled")
        require(self._told == generated, "the events' ids are not the completion's")
        require("".join(self._told_text) == done.text, "the events' text is not the completion's")
        require(done.text == "".join(self._text), f"text {done.text!r}, expected {''.join(self._text)!r}")
        require((done.usage.prompt_tokens, done.usage.completion_tokens) == (prompt, count), "usage differs from ids")
        require(0 <= done.usage.cached_tokens <= prompt, "more cached tokens than prompt tokens")
        require(len(done.sources) == count, "not one source per token")
        require(sum(row.emitted for row in done.rounds) == max(count - 1, 0), "rounds do not add up to the tokens")
        self._check_scores(done)

    def _check_scores(self, done: Completion) -> None:
        """Log-probabilities stand where their tokens do; the device writes −1 − position."""
        generated, prompt = list(done.token_ids), self.wish.prompt
        count = len(generated)
        if done.prompt_logprobs is not None and count:
            ids = [entry.token_id for entry in done.prompt_logprobs if entry is not None]
            values = [entry.logprob for entry in done.prompt_logprobs if entry is not None]
            require(ids == list(prompt[1:]), "log-probabilities of another prompt")
            require(values == [-1.0 - i for i in range(len(prompt) - 1)], "shifted prompt log-probabilities")
        if done.logprobs is not None:
            require([entry.token_id for entry in done.logprobs] == generated, "log-probabilities of other tokens")
            require([entry.logprob for entry in done.logprobs] == [-1.0 - i for i in range(count)], "shifted logprobs")

    def _accept(self, token: int) -> None:
        """One settled token."""
        policy = self.handle.policy
        generated = self._known - len(self.wish.prompt)
        if self.ended is not None:
            raise ContractError(f"request {self.handle.id} has a token after its end ({self.ended})")
        banned = policy.stop_ids if generated < policy.min_tokens else ()
        expected = self._truth.allowed(self._prefix, self._last, banned)
        require(token == expected, f"token {generated} of request {self.handle.id} is {token}, not {expected}")
        self._prefix, self._last = hash((self._prefix, token)), token
        self._known += 1
        if token in policy.stop_ids:
            self.ended = "stop"
            return
        if token < self._truth.words:
            self._text.append(letter(token))
            self._find_stop(generated + 1)
        if self.ended is None and generated + 1 == policy.max_tokens:
            self.ended = "length"

    def _find_stop(self, generated: int) -> None:
        """A stop string that this token completes ends the request before the string's first letter."""
        stops = self.wish.sampling.stops
        if not stops or generated <= self.handle.policy.min_tokens:
            return
        text = "".join(self._text[-max(map(len, stops)) :])
        found = [len(stop) for stop in stops if text.endswith(stop)]
        if found:
            self.ended = "stop"
            del self._text[-max(found) :]
