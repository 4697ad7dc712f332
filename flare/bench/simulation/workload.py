"""Requests of a simulation: prompts that share prefixes, lengths around page ends, stops of every kind."""

from dataclasses import dataclass
from random import Random

from flare.bench.simulation.scenario import Scenario
from flare.runtime.sampling import Sampling

LENGTHS = (1, 2, 3, 15, 16, 17, 62, 63, 64, 65, 66, 80, 127, 128, 129, 140, 191, 192, 193)


@dataclass(frozen=True)
class Wish:
    """A prompt and what its sender asks for; `leaves_after` so many events it closes the stream, None for never."""

    prompt: tuple[int, ...]
    sampling: Sampling
    leaves_after: int | None = None


class Workload:
    """Draws wishes one after another; the same seed draws the same ones."""

    def __init__(self, scenario: Scenario) -> None:
        self._draw = Random(f"workload {scenario.seed}")
        self._context = scenario.sizes.context
        self._room = scenario.sizes.pages * 64
        self._words = scenario.truth.words
        self._budgets = scenario.budgets
        self._pool = [self._fresh(self._draw.choice(LENGTHS)) for _ in range(scenario.pool)]

    def wish(self) -> Wish:
        """The next request."""
        draw = self._draw
        prompt = self._prompt()
        most = min(self._context, self._room) - len(prompt) - 1
        budget = max(1, min(draw.choice(self._budgets), most))
        stops = tuple(self._stop() for _ in range(draw.choice((1, 3)))) if draw.random() < 0.2 else None
        return Wish(
            prompt,
            Sampling(
                temperature=0.0,
                seed=draw.randrange(1 << 30),
                max_tokens=budget,
                min_tokens=draw.choice((0, 0, 0, min(5, budget))),
                stop=stops,
                stop_token_ids=[draw.randrange(self._words)] if draw.random() < 0.15 else None,
                ignore_eos=draw.random() < 0.3,
                logprobs=draw.choice((None, None, None, 0, 2)),
                speculation=None if draw.random() < 0.9 else False,
                max_draft_tokens=draw.choice((None, None, None, 1, 3)),
                prompt_logprobs=2 if draw.random() < 0.03 else None,
                cache_salt=draw.choice((None, None, "red", "blue")),
                n=2 if draw.random() < 0.05 else 1,
            ),
            leaves_after=draw.randint(0, 12) if draw.random() < 0.05 else None,
        )

    def learn(self, prompt: tuple[int, ...], answer: tuple[int, ...]) -> None:
        """Let a finished exchange become a prefix of later prompts, as the turns of a chat do."""
        tokens = prompt + answer
        if len(tokens) < self._context - 140 and self._draw.random() < 0.3:
            self._pool[self._draw.randrange(len(self._pool))] = tokens

    def _prompt(self) -> tuple[int, ...]:
        draw = self._draw
        kind = draw.random()
        base = draw.choice(self._pool)
        if kind < 0.3:
            return base
        if kind < 0.5:
            return base + self._fresh(draw.choice((1, 2, 11, 40)))
        if kind < 0.7:
            cut = draw.choice((draw.randint(1, len(base)), len(base) // 64 * 64, max(1, len(base) - 1)))
            return base[: max(cut, 1)] + self._fresh(draw.randint(1, 30))
        fresh = self._fresh(draw.choice(LENGTHS))
        if draw.random() < 0.5:
            self._pool[draw.randrange(len(self._pool))] = fresh
        return fresh

    def _fresh(self, length: int) -> tuple[int, ...]:
        """Tokens that repeat themselves now and then, as prompts do."""
        draw = self._draw
        phrase = [draw.randrange(self._words) for _ in range(draw.choice((4, 9, 30)))]
        return tuple(
            draw.randrange(self._words) if draw.random() < 0.1 else phrase[i % len(phrase)] for i in range(length)
        )

    def _stop(self) -> str:
        return "".join(chr(ord("a") + self._draw.randrange(26)) for _ in range(self._draw.choice((1, 2, 2, 3))))
