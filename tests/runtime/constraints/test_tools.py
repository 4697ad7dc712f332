"""Tool calls: free text or calls with arguments of their own schema, and nothing else."""

import json

import pytest

from flare.errors import RequestError
from flare.runtime.constraints import Constraint, Named, Tool, ToolMarkers, tool_grammar
from tests.runtime.constraints.words import END, SHARED, THINK, constraint, masks, wish

CLOCK = Tool(
    "get_time",
    {
        "type": "object",
        "properties": {"zone": {"type": "string"}},
        "required": ["zone"],
        "additionalProperties": False,
    },
)
SUM = Tool(
    'sum "up"',
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/number"}},
        "required": ["a"],
        "$defs": {"number": {"type": "integer"}},
    },
)
TOOLS = [CLOCK, SUM]


def call(tool: Tool, arguments: object) -> str:
    body = f'{{"name": {json.dumps(tool.name)}, "arguments": {json.dumps(arguments)}}}'
    return f"<tool_call>\n{body}\n</tool_call>"


TIME, TOTAL = call(CLOCK, {"zone": "UTC"}), call(SUM, {"a": 3})


def follows(grammar: str, text: str) -> bool:
    """Whether the text is a whole answer."""
    matcher = SHARED.matcher(wish(grammar=grammar))
    tokens = list(text.encode())
    if matcher.legal(tokens) < len(tokens):
        return False
    matcher.consume(tokens)
    return matcher.may_end


@pytest.mark.parametrize(
    ("text", "auto", "required", "named"),
    [
        ("Just an answer with <tags> & more.", True, False, False),
        ("", True, False, False),
        (TIME, True, True, False),
        (TOTAL, True, True, True),
        (f"Let me see. {TIME}", True, False, False),
        (f"{TIME}\n{TOTAL}", True, True, False),
        (f"{TOTAL}\n{TOTAL}", True, True, False),
        (f"{TIME} and then some", False, False, False),
        ("<tool_call>", False, False, False),
        (TIME.replace("get_time", "get_date"), False, False, False),
        (TOTAL.replace("3", '"three"'), False, False, False),
        (TIME.replace('"zone"', '"place"'), False, False, False),
    ],
)
def test_an_answer_is_text_or_calls_as_was_chosen(text, auto, required, named):
    assert follows(tool_grammar(TOOLS), text) == auto
    assert follows(tool_grammar(TOOLS, "required"), text) == required
    assert follows(tool_grammar(TOOLS, Named(SUM.name)), text) == named


def test_calls_may_be_limited_to_one():
    assert follows(tool_grammar(TOOLS, parallel=False), TIME)
    assert not follows(tool_grammar(TOOLS, parallel=False), f"{TIME}\n{TIME}")


def test_a_marker_may_carry_the_name():
    grammar = tool_grammar(TOOLS[:1], markers=ToolMarkers("<function={name}>", "</function>", ""))
    assert follows(grammar, 'First: <function=get_time>{"zone": "UTC"}</function>')
    assert not follows(grammar, '<function=other>{"zone": "UTC"}</function>')


def test_a_marker_may_be_a_control_token():
    grammar = tool_grammar(TOOLS[:1], markers=ToolMarkers("</think>", "", "", {"</think>": THINK}))
    following = Constraint(SHARED.matcher(wish(grammar=grammar)), (END,))
    assert THINK in masks(following)[0]
    following.commit([*b"hm ", THINK], ended=False)
    drafts = following.drafts([], 60)
    assert bytes(drafts).startswith(b'{"name": "get_time", "arguments": {')


def test_a_named_call_is_forced_up_to_its_arguments():
    following = constraint(grammar=tool_grammar(TOOLS, Named(CLOCK.name)))
    drafts = following.drafts([], 100)
    assert bytes(drafts) == TIME[: TIME.index('"zone"')].encode()


@pytest.mark.parametrize(
    ("tools", "choice", "explained"),
    [
        ([], "auto", "at least one tool"),
        ([CLOCK, CLOCK], "auto", "Two tools are called 'get_time'"),
        (TOOLS, Named("get_tim"), "did you mean 'get_time'"),
    ],
)
def test_a_choice_that_cannot_be_made_is_one_sentence(tools, choice, explained):
    with pytest.raises(RequestError, match=explained):
        tool_grammar(tools, choice)
