"""Texts that are too long to be worth encoding."""

from flare.contract.vocabulary import Vocabulary
from flare.server.wire.errors import context_exceeded


def check_length(text: str, vocabulary: Vocabulary, context_tokens: int, field: str) -> None:
    """Raise ApiError for a text whose length alone shows that it fills the context; nothing is encoded."""
    least = vocabulary.least_tokens(text)
    if least >= context_tokens:
        raise context_exceeded(field, least, context_tokens, least=True)
