"""What has happened since the server started, counted from the engine's deliveries and the routes' answers."""

from collections import Counter
from time import perf_counter
from typing import TYPE_CHECKING

from flare.runtime.results import Completion, Round
from flare.server.metrics.distribution import Distribution
from flare.server.observer import Delivery, Step

if TYPE_CHECKING:
    from flare.server.server import ServedModel


class Tally:
    """An observer that counts; every counter is the sum over completions of the number each of them tells.

    Tokens and rounds are counted as they come, so those of a request that still runs are in; a prompt, the time to the
    first token and the time per token when its choice ends. A choice counts its prompt however many share it.

    Attributes:
        received_by: requests by route; answered_by: by route and status, 499 for clients that left.
        http_s: seconds until an answer was over, by route.
        finished: choices by finish reason, "error" for those that failed.
        prompt, cached, generated: tokens, the last also by source; hits: choices that began from a cached prefix.
        rounds: of one request each, so a graph of four lanes counts four; drafts: those that were offered any.
        offered, accepted: drafts in all, by source and by depth, of which the first is 0.
        widths: rounds by verification width.
        ttft_s: from submission; per_token_s: (end − first token) / (n − 1) of choices with n > 1 tokens.
        gap_s: between two deliveries of one choice, however many tokens the later one has; whole_s: of a choice.
    """

    def __init__(self) -> None:
        self.received_by: Counter[str] = Counter()
        self.answered_by: Counter[tuple[str, int]] = Counter()
        self.http_s: dict[str, Distribution] = {}
        self.finished: Counter[str] = Counter()
        self.tokens_by_source: Counter[str] = Counter()
        self.prompt = self.cached = self.generated = self.hits = 0
        self.rounds = self.drafts = self.offered = self.accepted = 0
        self.offered_by_source: Counter[str] = Counter()
        self.accepted_by_source: Counter[str] = Counter()
        self.offered_by_depth: Counter[int] = Counter()
        self.accepted_by_depth: Counter[int] = Counter()
        self.widths: Counter[int] = Counter()
        self.ttft_s, self.per_token_s, self.gap_s, self.whole_s = (Distribution() for _ in range(4))
        self._last_s: dict[int, float] = {}

    def loaded(self, model: "ServedModel") -> None:
        """Nothing to count."""

    def received(self, route: str) -> None:
        self.received_by[route] += 1

    def answered(self, route: str, status: int, seconds: float) -> None:
        self.answered_by[route, status] += 1
        self.http_s.setdefault(route, Distribution()).observe(seconds)

    def stepped(self, step: Step) -> None:
        now_s = perf_counter()
        for delivery in step.deliveries:
            for row in delivery.rounds:
                self._count_round(row)
            self._count_delivery(delivery, now_s)

    def _count_round(self, row: Round) -> None:
        self.rounds += 1
        self.widths[row.width] += 1
        if not row.offered:
            return
        self.drafts += 1
        self.offered += row.offered
        self.accepted += row.accepted
        for depth, source in enumerate(row.sources):
            self.offered_by_depth[depth] += 1
            self.offered_by_source[source] += 1
            if depth < row.accepted:
                self.accepted_by_depth[depth] += 1
                self.accepted_by_source[source] += 1

    def _count_delivery(self, delivery: Delivery, now_s: float) -> None:
        event, request = delivery.event, delivery.request
        if event is not None and event.token_ids:
            self.generated += len(event.token_ids)
            self.tokens_by_source.update(event.sources)
            if request in self._last_s:
                self.gap_s.observe(now_s - self._last_s[request])
            self._last_s[request] = now_s
        completion = event.completion if event is not None else None
        if completion is not None:
            self._count_completion(completion)
        elif delivery.error is not None:
            self.finished["error"] += 1
        if completion is not None or delivery.error is not None:
            self._last_s.pop(request, None)

    def _count_completion(self, completion: Completion) -> None:
        usage, timing = completion.usage, completion.timing
        self.finished[completion.finish_reason] += 1
        self.prompt += usage.prompt_tokens
        self.cached += usage.cached_tokens
        self.hits += usage.cached_tokens > 0
        if not usage.completion_tokens:
            return
        self.ttft_s.observe(timing.ttft_s)
        self.whole_s.observe(timing.ttft_s + timing.decode_s)
        if usage.completion_tokens > 1:
            self.per_token_s.observe(timing.decode_s / (usage.completion_tokens - 1))
