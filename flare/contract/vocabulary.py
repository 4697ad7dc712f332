"""The vocabulary of a model: text to token ids and back, chats to prompts, exact streaming.

The runtime sees a tokenizer only through this type. Ids are plain ints; nothing here touches tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jinja2
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from flare.contract.chat import compiled, reads
from flare.contract.token_lengths import TokenLengths, token_lengths
from flare.errors import RequestError

Message = Mapping[str, Any]
"""`{"role": …, "content": …}`; an assistant's may have `tool_calls`, and null for its content then."""


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer with what a checkpoint says about its use.

    Attributes:
        tokenizer: never changed after construction; shared by all requests.
        eos_ids: tokens that end a response, the checkpoint's own end-of-sequence token first; may be empty.
        bos_id: the token that begins a sequence, or None where the model has none.
        add_bos: plain text is encoded with `bos_id` in front (chat templates write their own).
        chat_template: Jinja source, or None where the model cannot chat.
    """

    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]
    bos_id: int | None = None
    add_bos: bool = False
    chat_template: str | None = None

    @property
    def size(self) -> int:
        """Number of tokens, control tokens included; the model may have more embedding rows."""
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt; control tokens written out in it are parsed, as Hugging Face does.

        Raises:
            RequestError: half of a surrogate pair, which no UTF-8 spells: JSON escapes and bad bytes leave them.
        """
        ids = self.encode_rendered(text)
        if self.add_bos and self.bos_id is not None:
            return [self.bos_id, *ids]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without control tokens; bytes that are not UTF-8 become U+FFFD."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Token ids of a conversation as the model was trained to see it.

        Args:
            messages: in order; contents are strings.
            add_generation_prompt: end with the header of the assistant's turn.
            tools: functions the model may call, as `{"type": "function", "function": {…}}`.

        Raises:
            RequestError: no template, no messages, a malformed message, or one the template refuses.
        """
        return self.encode_rendered(self.render(messages, add_generation_prompt, tools))

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The conversation as text, control tokens written out; raises like `chat`."""
        if self.chat_template is None:
            raise RequestError("This model has no chat template: give it plain text instead of messages.")
        if not messages:
            raise RequestError("A chat needs at least one message.")
        for index, message in enumerate(messages):
            check_message(index, message)
        try:
            return self._template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                tools=list(tools) if tools else None,
                documents=None,
                bos_token=self._token(self.bos_id),
                eos_token=self._token(self.eos_ids[0] if self.eos_ids else None),
            )
        # a template is a program: what it does to messages of another shape than it expects fails in any of these ways
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise RequestError(f"The model's chat template refuses these messages: {error}.") from error

    def encode_rendered(self, text: str) -> list[int]:
        """Token ids of what `render` wrote, or of more text behind it; control tokens written out in it are parsed.

        Raises:
            RequestError: half of a surrogate pair.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError("The prompt is not Unicode: it holds half of a surrogate pair.") from error
        # a batch, because other threads run on meanwhile: `encode` holds the interpreter's lock
        return self.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def least_tokens(self, text: str) -> int:
        """Tokens that the text has at the very least, told from its length alone; 0 where nothing is certain."""
        return 0 if self.token_lengths is None else self.token_lengths.least_tokens(text)

    @cached_property
    def token_lengths(self) -> TokenLengths | None:
        """How much text one token can hold; None where no bound is certain."""
        return token_lengths(self.tokenizer_json)

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the chat template has a place for tools."""
        return self.chat_template is not None and reads(self.chat_template, "tools")

    @cached_property
    def control_ids(self) -> Mapping[str, int]:
        """Control tokens, which decoding leaves out, by their names."""
        added = self.tokenizer.get_added_tokens_decoder().items()
        return {token.content: id for id, token in added if token.special}

    @property
    def tokenizer_json(self) -> str:
        """The whole tokenizer in the format of tokenizer.json, for libraries that read tokens as bytes."""
        return self.tokenizer.to_str()

    def stream(self) -> "TextStream":
        """A decoder for one response, fed token by token."""
        return TextStream(self)

    @cached_property
    def byte_ids(self) -> frozenset[int]:
        """Tokens `<0x00>` to `<0xFF>` of vocabularies that spell unknown characters in bytes; empty elsewhere."""
        ids = (self.tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        return frozenset(id for id in ids if id is not None)

    @cached_property
    def _template(self) -> jinja2.Template:
        return compiled(self.chat_template or "")

    def _token(self, id: int | None) -> str:
        return "" if id is None else self.tokenizer.id_to_token(id) or ""


def check_message(index: int, message: Message) -> None:
    """Raise RequestError unless the message is a mapping with a string role and a string content.

    An assistant that called tools may have said nothing.
    """
    if not isinstance(message, Mapping):
        raise RequestError(f"Message {index} must be an object with role and content, not {type(message).__name__}.")
    silent = message.get("role") == "assistant" and bool(message.get("tool_calls")) and message.get("content") is None
    for key in ("role",) if silent else ("role", "content"):
        if not isinstance(message.get(key), str):
            found = f"it is {type(message[key]).__name__}" if key in message else "it is missing"
            raise RequestError(f"Message {index} needs a text under {key!r}, but {found}.")


class TextStream:
    """Turns the tokens of one response into text that is never taken back.

    The pieces of all `push` calls and the final `flush` join to `Vocabulary.decode` of the ids. A piece never
    ends inside a character: U+FFFD appears only where the whole text has it.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._run: list[int] = []
        self._emitted_characters = 0

    def push(self, id: int) -> str:
        """The text that became certain with this token; often empty inside a character."""
        self._ids.append(id)
        self._run.append(id)
        # A decoder with byte fallback spells a whole run of byte tokens as U+FFFD when any part of it is broken, so
        # the text of a run is certain only once the run has ended.
        if id in self._vocabulary.byte_ids:
            return ""
        piece = self._decoder.step(self._vocabulary.tokenizer, self._run) or ""
        self._run = []
        self._emitted_characters += len(piece)
        return piece

    def flush(self) -> str:
        """What is still held when the response ends: the rest of the full text."""
        rest = self._vocabulary.decode(self._ids)[self._emitted_characters :]
        self._emitted_characters += len(rest)
        return rest
