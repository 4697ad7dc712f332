"""How one model is spoken to: its template, its ways to call tools and to think, and what a request forces of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from flare.contract.vocabulary import Vocabulary
from flare.runtime.constraints.wishes import FIELDS
from flare.server.parsing.answer_format import AnswerParser, ChatAsk, ChatPrompt, Named, ToolSpec
from flare.server.parsing.conversation import Message, as_text, for_template
from flare.server.parsing.formats import ToolFormat
from flare.server.parsing.grammar import Shape, call_grammar
from flare.server.parsing.length import check_length
from flare.server.parsing.reader import THINK, THINK_END, Reader, Reading
from flare.server.wire.errors import ApiError, Code

SPOKEN_BY_TOOLS = ("tool_calls", "tool_call_id")


@dataclass(frozen=True)
class ModelFormat:
    """The `AnswerFormat` of a vocabulary.

    Attributes:
        calls: how the model writes calls; None refuses tools.
        thinks: its answers may begin with `<think>…</think>`.
    """

    vocabulary: Vocabulary
    calls: ToolFormat | None
    thinks: bool

    def prompt(self, ask: ChatAsk) -> ChatPrompt:
        tools = () if ask.tool_choice == "none" else ask.tools
        self._check(ask, tools)
        text = self._rendered(ask, tools)
        forced = bool(tools) and _forces(ask)
        thinking = self.thinks and _last_marker(text) == THINK
        # A grammar must not wait for the end of thoughts that need not come: where it starts behind them, they begin.
        if self.thinks and (forced or ask.constraint) and _last_marker(text) is None:
            text, thinking = f"{text}{THINK}\n", True
        sampling: dict[str, Any] = {}
        if thinking and (forced or ask.constraint):
            sampling["constrain_after"] = THINK_END
        if forced:
            sampling |= dict.fromkeys(FIELDS) | {"grammar": self._grammar(ask, tools)}
        check_length(text, self.vocabulary, ask.context_tokens, "messages")
        ids = self.vocabulary.encode_rendered(text)
        return ChatPrompt(ids, self._parsers(tools, thinking), sampling)

    def _parsers(self, tools: Sequence[ToolSpec], thinking: bool) -> "_Parsers":
        calls = self.calls if tools else None
        markers = (*((THINK, THINK_END) if self.thinks else ()), *(calls.markers if calls else ()))
        control = {id: name for name, id in self.vocabulary.control_ids.items() if name in markers}
        return _Parsers(self.vocabulary, Reading(calls, tuple(tools), self.thinks, thinking, control))

    def _rendered(self, ask: ChatAsk, tools: Sequence[ToolSpec]) -> str:
        """The conversation with its tools. Raises ApiError or RequestError."""
        if self.vocabulary.shows_tools:
            messages: Sequence[Message] = for_template(ask.messages, bool(self.calls and self.calls.arguments_as_text))
            return self.vocabulary.render(messages, tools=[dict(tool.declared) for tool in tools])
        return self.vocabulary.render(as_text(ask.messages, tools))

    def _grammar(self, ask: ChatAsk, tools: Sequence[ToolSpec]) -> str:
        assert self.calls is not None, "tools are refused without a format"
        choice = ask.tool_choice
        named = choice.name if isinstance(choice, Named) else None
        shape = Shape(
            tools=[tool for tool in tools if named in (None, tool.name)],
            free=choice == "auto",
            several=ask.parallel_tool_calls and named is None,
            constraint=ask.constraint,
        )
        control = self.vocabulary.control_ids
        return call_grammar(self.calls, shape, {name: control[name] for name in self.calls.markers if name in control})

    def _check(self, ask: ChatAsk, tools: Sequence[ToolSpec]) -> None:
        """Raise ApiError for tools that cannot be called."""
        if self.calls is None:
            if tools:
                raise ApiError(
                    Code.UNSUPPORTED_FIELD, "tools is not supported: this model was not made to call any.", "tools"
                )
            for index, message in enumerate(ask.messages):
                if said := next((name for name in SPOKEN_BY_TOOLS if name in message), None):
                    where = f"messages[{index}].{said}"
                    message = f"{where} is not supported: this model was not made to call tools."
                    raise ApiError(Code.UNSUPPORTED_FIELD, message, where)
        names = [tool.name for tool in tools]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ApiError(Code.INVALID_VALUE, f"Two tools are called {twice!r}: names must differ.", "tools")
        choice = ask.tool_choice
        if isinstance(choice, Named) and choice.name not in names:
            near = get_close_matches(choice.name, names, 1, 0) or ["one that is listed"]
            message = f"tool_choice names {choice.name!r}, which is not among the tools; did you mean {near[0]!r}?"
            raise ApiError(Code.INVALID_VALUE, message, "tool_choice")
        if ask.constraint and (choice == "required" or isinstance(choice, Named)):
            message = (
                f"tool_choice forces a call, but {next(iter(ask.constraint))} says what the text must be: keep one."
            )
            raise ApiError(Code.INVALID_VALUE, message, "tool_choice")


@dataclass(frozen=True)
class _Parsers:
    """Makes a parser for each choice."""

    vocabulary: Vocabulary
    reading: Reading

    def __call__(self) -> AnswerParser:
        return Reader(self.reading, self.vocabulary.stream() if self.reading.control else None)


def _forces(ask: ChatAsk) -> bool:
    """Whether a grammar is needed for what is asked: a call that must come, follow its schema, or be the only one."""
    strict = any(tool.declared["function"].get("strict") for tool in ask.tools)
    return ask.tool_choice != "auto" or strict or not ask.parallel_tool_calls or bool(ask.constraint)


def _last_marker(text: str) -> str | None:
    """The marker of thinking that a prompt ends with."""
    end = text.rstrip()
    return next((marker for marker in (THINK, THINK_END) if end.endswith(marker)), None)
