"""Log-probabilities in the two shapes of the two APIs."""

from collections.abc import Sequence
from typing import Any

from flare.runtime.results import Logprob
from flare.server.replies.spelling import Spelling

LEAST = -9999.0  # JSON has no infinity; OpenAI writes this for what is impossible


def chat_logprobs(entries: Sequence[Logprob], spelling: Spelling) -> dict[str, Any]:
    """One object per token, with its bytes and its alternatives."""
    return {"content": [_chat_entry(entry, spelling) for entry in entries], "refusal": None}


def _chat_entry(entry: Logprob, spelling: Spelling) -> dict[str, Any]:
    return {
        **_named(entry.token_id, entry.logprob, spelling),
        "top_logprobs": [_named(token, logprob, spelling) for token, logprob in entry.top],
    }


def _named(token: int, logprob: float, spelling: Spelling) -> dict[str, Any]:
    return {
        "token": spelling.text(token),
        "logprob": max(logprob, LEAST),
        "bytes": list(spelling.bytes_of(token)),
    }


def completion_logprobs(
    tokens: Sequence[int], entries: Sequence[Logprob | None], offset: int, spelling: Spelling
) -> tuple[dict[str, Any], int]:
    """Four parallel lists, and the offset behind the last token.

    Args:
        entries: one per token; None for a token that nothing comes before.
        offset: characters of the tokens before the first.
    """
    texts = [spelling.text(token) for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    document = {
        "tokens": texts,
        "token_logprobs": [None if entry is None else max(entry.logprob, LEAST) for entry in entries],
        "top_logprobs": [_likely(entry, spelling) for entry in entries],
        "text_offset": offsets,
    }
    return document, offset


def _likely(entry: Logprob | None, spelling: Spelling) -> dict[str, float] | None:
    if entry is None:
        return None
    pairs = [*entry.top, (entry.token_id, entry.logprob)]
    return {spelling.text(token): max(logprob, LEAST) for token, logprob in pairs}
