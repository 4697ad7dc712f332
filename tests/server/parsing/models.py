"""Vocabularies of bytes with the chat templates of several families, and formats over them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tokenizers import AddedToken

from flare.contract.vocabulary import Vocabulary
from flare.server.parsing import answer_format
from flare.server.parsing.answer_format import AnswerFormat
from tests.runtime.constraints.words import END, byte_tokenizer

CHATS = Path(__file__).parents[2] / "golden/chat"
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '>' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def template(name: str) -> str:
    return (CHATS / f"{name}.jinja").read_text(encoding="utf-8") if name != "plain" else PLAIN_TEMPLATE


def vocabulary(name: str = "plain", control: tuple[str, ...] = ()) -> Vocabulary:
    """Bytes, `</think>` and the control tokens; what has no token of its own is spelled."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return Vocabulary(tokenizer, eos_ids=(END,), chat_template=template(name))


def format_of(name: str = "plain", tools: str = "auto", thoughts: str = "auto", **more: Any) -> AnswerFormat:
    serving = SimpleNamespace(tool_format=tools, reasoning_format=thoughts)
    config: Any = SimpleNamespace(serving=serving)
    return answer_format(config, vocabulary(name, **more))
