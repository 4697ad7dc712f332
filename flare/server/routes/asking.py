"""What routes check alike before anything is queued: model, ids, messages, context."""

from collections.abc import Mapping, Sequence
from typing import Any

from flare.config.serving import Serving
from flare.contract.vocabulary import Vocabulary
from flare.runtime.constraints import schema_text
from flare.runtime.sampling import Sampling
from flare.server.replies.reply import Envelope, envelope
from flare.server.server import ServedModel, Server
from flare.server.wire.errors import ApiError, Code, context_exceeded, output_exceeds, shortened
from flare.server.wire.fields import GeneratingBody


def check_model(asked: str | None, model: ServedModel) -> None:
    """Raise ApiError 404 unless the asked model, if any, is the served one."""
    if asked is not None and asked != model.name:
        message = f"There is no model {shortened(asked)} here; the one that is served is {model.name!r}."
        raise ApiError(Code.UNKNOWN_MODEL, message, "model")


def check_prompt(ids: Sequence[int], model: ServedModel, field: str) -> None:
    """Raise ApiError unless a prompt has tokens and leaves room for one more."""
    if not ids:
        raise ApiError(Code.INVALID_VALUE, f"{field} has no tokens: write at least one character.", field)
    if len(ids) >= model.extent.context:
        raise context_exceeded(field, len(ids), model.extent.context)


def check_output(prompts: Sequence[Sequence[int]], body: GeneratingBody, model: ServedModel, field: str) -> None:
    """Raise ApiError unless the longest prompt leaves room for the output that is asked for."""
    longest, context = max(map(len, prompts)), model.extent.context
    if body.most_tokens is not None and longest + body.most_tokens > context:
        named = "max_tokens" if body.max_tokens is not None else "max_completion_tokens"
        raise output_exceeds(named, body.most_tokens, field, longest, context)


def check_ids(ids: Sequence[int], model: ServedModel, field: str) -> None:
    """Raise ApiError for an id outside the model's vocabulary."""
    vocab = model.extent.vocab
    if ids and (min(ids) < 0 or max(ids) >= vocab):
        index = next(index for index, token in enumerate(ids) if not 0 <= token < vocab)
        name = f"{field}[{index}]"
        message = f"{name}={shortened(ids[index])} is not allowed: token ids go from 0 to {vocab - 1}."
        raise ApiError(Code.INVALID_VALUE, message, name)


def check_sampled_ids(body: GeneratingBody, model: ServedModel) -> None:
    """Raise ApiError for an id among the stops or biases that is outside the model's vocabulary."""
    check_ids(body.stop_token_ids or (), model, "stop_token_ids")
    vocab = model.extent.vocab
    wrong = next((token for token in body.logit_bias or () if int(token) >= vocab), None)
    if wrong is not None:
        message = f"logit_bias has the key {shortened(wrong)}: token ids go from 0 to {vocab - 1}."
        raise ApiError(Code.INVALID_VALUE, message, "logit_bias")


def check_count(messages: Sequence[object], settings: Serving) -> None:
    """Raise ApiError for more messages than a conversation may have."""
    if len(messages) > settings.max_messages:
        message = f"messages has {len(messages)} entries, at most {settings.max_messages} are taken: send fewer."
        raise ApiError(Code.TOO_MANY_MESSAGES, message, "messages")


def asked_n(body: GeneratingBody, model: ServedModel) -> int:
    """Choices per prompt."""
    return body.n or model.config.sampling.n or 1


def sampled(wishes: Mapping[str, Any]) -> Sampling:
    """The sampling of a request. It is copied on its way to the engine: a schema is written out once, not by each copy.

    Raises:
        RequestError: a value outside its range, or a schema that is none.
    """
    if wishes.get("json_schema") is None:
        return Sampling(**wishes)
    return Sampling(**{**wishes, "json_schema": schema_text(wishes["json_schema"])})


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
