"""What clients of a soak ask, and what a good answer to it is."""

from dataclasses import dataclass
from random import Random
from typing import Any

from flare.bench.serving.client import Answer

SHARED_TOKENS = 150  # what many prompts begin with, more than two pages
MOST_TOKENS = 32


@dataclass(frozen=True)
class Request:
    """A body for /v1/completions; `leave_after` so many pieces the client hangs up, None reads to the end."""

    body: dict[str, Any]
    leave_after: int | None


class Traffic:
    """Random requests of one client; the same seed asks the same."""

    def __init__(self, seed: int, vocab: int, disconnect: float) -> None:
        """Args: disconnect: share of requests whose client leaves early."""
        self._random = Random(seed)
        self._vocab = vocab
        self._disconnect = disconnect
        self._shared = [Random(token).randrange(vocab) for token in range(SHARED_TOKENS)]

    def next(self) -> Request:
        """The next request."""
        draw = self._random
        prompt = self._shared[: draw.choice((0, 0, 64, 100, 128, SHARED_TOKENS))]
        prompt = prompt + [draw.randrange(self._vocab) for _ in range(draw.randint(1, 60))]
        body: dict[str, Any] = {
            "prompt": prompt,
            "max_tokens": draw.randint(1, MOST_TOKENS),
            "seed": draw.randrange(2**31),
            "return_token_ids": True,
        }
        extras = ({"n": 2}, {"logprobs": 2}, {"speculation": False}, {"stop": ["e", "qu"]}, {"temperature": 0.0})
        body |= draw.choice((*extras, {}, {}, {}, {}, {}))
        leaves = draw.random() < self._disconnect
        if leaves or draw.random() < 0.8:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return Request(body, draw.randint(0, 12) if leaves else None)

    def pause_s(self) -> float:
        """Before the next request; a client is not always busy."""
        return self._random.choice((0.0, 0.0, 0.05, 0.3))


def fault_of(request: Request, answer: Answer) -> str | None:
    """What is wrong with an answer that was read to its end; None where it is complete and adds up."""
    if answer.status != 200:
        return f"status {answer.status}: {answer.events[:1]}"
    if not answer.ended:
        return "the answer has no end"
    documents = answer.documents()
    if any("error" in document for document in documents):
        return f"an error event: {documents[-1]}"
    choices = [choice for document in documents for choice in document["choices"]]
    wanted, most = request.body.get("n", 1), request.body["max_tokens"]
    ids = [0] * wanted
    reasons: list[str | None] = [None] * wanted
    for choice in choices:
        ids[choice["index"]] += len(choice.get("token_ids") or ())
        reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    usage = next((document["usage"] for document in reversed(documents) if document.get("usage")), None)
    if usage is None or usage["completion_tokens"] != sum(ids) or usage["prompt_tokens"] != len(request.body["prompt"]):
        return f"usage {usage} beside {ids} ids"
    for count, reason in zip(ids, reasons, strict=True):
        if reason not in ("stop", "length") or (reason == "length" and count != most) or not 0 < count <= most:
            return f"finish_reason {reason} after {count} of {most} tokens"
    return None
