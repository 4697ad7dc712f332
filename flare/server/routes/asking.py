"""What chats and completions check alike before they are queued: model, context, log-probabilities."""

from collections.abc import Sequence

from flare.contract.vocabulary import Vocabulary
from flare.server.replies.reply import Envelope, envelope
from flare.server.server import ServedModel, Server
from flare.server.wire.errors import ApiError, context_exceeded
from flare.server.wire.fields import GeneratingBody


def check_model(asked: str | None, model: ServedModel) -> None:
    """Raise ApiError 404 unless the asked model, if any, is the served one."""
    if asked is not None and asked != model.name:
        message = f"There is no model {asked[:80]!r} here; the one that is served is {model.name!r}."
        raise ApiError(404, message, "model", "model_not_found")


def check_context(prompts: Sequence[Sequence[int]], max_tokens: int | None, model: ServedModel, field: str) -> None:
    """Raise ApiError unless every prompt leaves room for the output that is asked for, or for one token."""
    context = model.extent.context
    for prompt in prompts:
        if not prompt:
            raise ApiError(400, f"{field} has no tokens: write at least one character.", field, "invalid_value")
        if len(prompt) + (max_tokens or 1) > context:
            raise context_exceeded(field, len(prompt), max_tokens, context)


def check_ids(ids: Sequence[int], model: ServedModel, field: str) -> None:
    """Raise ApiError for an id outside the model's vocabulary."""
    vocab = model.extent.vocab
    wrong = next((token for token in ids if token >= vocab), None)
    if wrong is not None:
        raise ApiError(400, f"{field} holds {wrong}; token ids go from 0 to {vocab - 1}.", field, "invalid_value")


def asked_n(body: GeneratingBody, model: ServedModel) -> int:
    """Choices per prompt."""
    return body.n or model.config.sampling.n or 1


def surroundings(prefix: str, body: GeneratingBody, prompts: Sequence[Sequence[int]], server: Server) -> Envelope:
    """The envelope of the response to a body."""
    model = server.ready_model()
    return envelope(
        prefix,
        body,
        model=model.name,
        fingerprint=model.fingerprint,
        n=asked_n(body, model),
        prompt_tokens=tuple(map(len, prompts)),
        depth=model.extent.width - 1,
        level=body.speculation_metrics or server.settings.speculation_metrics,
    )


def encoded(text: str, vocabulary: Vocabulary, with_start: bool = True) -> list[int]:
    """Token ids of a plain text; the start of a sequence, where the model wants one, can be left out."""
    ids = vocabulary.encode(text)
    began = vocabulary.add_bos and vocabulary.bos_id is not None
    return ids[1:] if began and not with_start else ids
