"""What a grammar lets through is read back as the calls it was meant to be."""

import json
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from flare.errors import RequestError
from flare.runtime.constraints.grammar import Grammars
from flare.server.parsing.answer_format import ToolSpec
from flare.server.parsing.formats import FORMATS
from flare.server.parsing.grammar import Shape, call_grammar
from tests.runtime.constraints.words import END, VOCAB, wish
from tests.server.parsing.answers import (
    CASES,
    NOW,
    TOOLS,
    TWICE,
    WEATHER,
    dsml,
    fenced,
    hermes,
    json_line,
    parameters,
    read,
    reading,
    spec,
)
from tests.server.parsing.models import vocabulary

UNIT = spec(
    "convert",
    {
        "type": "object",
        "properties": {
            "unit": {"enum": ["°C", "K"]},
            "to": {"$ref": "#/$defs/To"},
            "note": {"type": "string"},
        },
        "required": ["unit", "to"],
        "additionalProperties": False,
        "$defs": {"To": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 1}},
    },
)
MARKERS = {name for format in FORMATS.values() for name in format.markers}
BYTES, CONTROL = vocabulary(), vocabulary(control=tuple(sorted(MARKERS)))
MATCHERS = {False: Grammars(BYTES, VOCAB), True: Grammars(CONTROL, VOCAB)}

ENDS = {
    control: [words.encode(end) for end in ("\n</parameter>\n", "</arg_value>\n", "</｜DSML｜parameter>\n")]
    for control, words in ((False, BYTES), (True, CONTROL))
}


def matcher(format: str, shape: Shape, control: bool = False):
    ids = {name: CONTROL.control_ids[name] for name in MARKERS} if control else {}
    return MATCHERS[control].matcher(wish(grammar=call_grammar(FORMATS[format], shape, ids)))


def follows(format: str, shape: Shape, text: str, control: bool = False) -> bool:
    following = matcher(format, shape, control)
    ids = (CONTROL if control else BYTES).encode(text)
    if following.legal(ids) < len(ids):
        return False
    following.consume(ids)
    return following.may_end


def written_by_chance(format: str, shape: Shape, seed: int, control: bool = False) -> str:
    """A text that the grammar allows: what it forces, or letters that a coin picks."""
    following, rng, ids = matcher(format, shape, control), random.Random(seed), []
    while not following.may_end or (following.goes_on and rng.random() < 0.3 and len(ids) < 400):
        row = np.zeros((VOCAB + 31) // 32, np.int32)
        following.allow(row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
        closing = [id for id in allowed if id >= END or (len(ids) > 150 and chr(id) in '"}]</,:tfn0')]
        letters = [id for id in allowed if 32 <= id < 127]
        token = rng.choice(closing if closing and rng.random() < 0.7 else letters or allowed)
        tokens = next(
            (end for end in ENDS[control] if rng.random() < 0.2 and following.legal(end) == len(end)), [token]
        )
        following.consume(tokens)
        ids += tokens
        assert len(ids) < 3000
    return CONTROL.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("control", [False, True], ids=["spelled", "control"])
@pytest.mark.parametrize("format", FORMATS)
def test_forced_answers_are_nothing_but_calls(format, control):
    how = reading(format, tools=(*TOOLS, UNIT))
    for seed in range(4):
        text = written_by_chance(format, Shape((*TOOLS, UNIT)), seed, control)
        said = read(how, text)
        assert said.content == said.reasoning == ""
        assert len(said.calls) >= 1
        for name, arguments in said.values:
            check(arguments, {tool.name: tool for tool in (*TOOLS, UNIT)}[name])


def check(arguments: dict[str, Any], tool: ToolSpec) -> None:
    types = {"city": str, "days": int, "metric": bool, "where": dict, "unit": str, "to": list, "note": str}
    assert set(tool.parameters.get("required", ())) <= set(arguments) <= set(tool.parameters["properties"])
    assert all(isinstance(value, types[key]) for key, value in arguments.items())


@pytest.mark.parametrize("case", [case for case in CASES if case.calls and case.format != "glm"], ids=str)
def test_what_models_write_freely_is_allowed(case):
    shape = Shape(TOOLS, free=True)
    text = case.text.rstrip() if case.format != "parameters" else case.text
    if "</tool_cal" not in text.replace("</tool_call>", ""):  # the grammar writes one blank line less in between
        text = text.replace("</tool_call><tool_call>", "</tool_call>\n<tool_call>")
        assert follows(case.format, shape, text)


def test_a_named_choice_is_one_call_of_that_tool():
    shape = Shape([NOW], several=False)
    assert follows("hermes", shape, hermes("now", {}))
    assert not follows("hermes", shape, hermes("get_weather", {"city": "A"}))
    assert not follows("hermes", shape, f"{hermes('now', {})}\n{hermes('now', {})}")
    assert not follows("hermes", shape, "Hello")
    assert not follows("hermes", shape, "")


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_a_free_answer_is_text_or_calls_but_no_text_that_begins_a_call(format, control):
    shape, trigger = Shape(TOOLS, free=True), FORMATS[format].trigger
    call = written_by_chance(format, Shape([NOW], several=False), 0, control)
    assert follows(format, shape, call, control)
    for text in ("", "Hello <there>, {x} ｜ /\n", "\n"):
        if format != "json" or not text.startswith("\n"):
            assert follows(format, shape, text, control)
    if trigger:
        assert follows(format, shape, f"On it.\n{call}", control)
        assert not follows(format, shape, f"On it.\n{trigger}", control)
        assert not follows(format, shape, f"On it.\n{call}\nDone.", control)
    else:
        assert not follows(format, shape, "{}", control)


def test_strict_schemas_are_followed_in_every_format():
    wrong = {"city": "A", "days": "three"}
    shape = Shape(TOOLS, free=True)
    for format, text in (
        ("hermes", hermes("get_weather", wrong)),
        ("json", json_line("get_weather", wrong)),
        ("parameters", parameters("get_weather", wrong)),
        ("deepseek_fenced", fenced(("get_weather", wrong))),
        ("dsml", dsml(("get_weather", wrong))),
    ):
        assert not follows(format, shape, text)
        right = text.replace('"three"', "3").replace("three", "3").replace('days" string="true', 'days" string="false')
        assert follows(format, shape, right)


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        ({"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
         '{"a": 1}', '{"a": "x"}'),
        ({"json_object": True}, '{"anything": [1]}', "[1]"),
        ({"regex": "a/[0-9]+"}, "a/12", "a/"),
        ({"regex": r"\\/\/[/]"}, "\\///", "\\//"),
        ({"regex": "a\nb"}, "a\nb", "anb"),
        ({"regex": "a\\\nb"}, "a\nb", "a\\nb"),
    ],
)  # fmt: skip
def test_an_answer_with_a_shape_of_its_own_is_that_or_calls(constraint: Mapping[str, Any], good, bad):
    shape = Shape(TOOLS, free=True, constraint=constraint)
    assert follows("hermes", shape, good)
    assert not follows("hermes", shape, bad)
    assert not follows("hermes", shape, "Hello")
    assert follows("hermes", shape, "\n".join(hermes(*call) for call in TWICE))


def test_a_grammar_of_the_requests_own_cannot_be_combined():
    with pytest.raises(RequestError, match="grammar cannot be combined with tools"):
        call_grammar(FORMATS["hermes"], Shape([WEATHER], free=True, constraint={"grammar": 'start: "a"'}), {})


def test_calls_hold_their_arguments_in_the_schemas_order():
    text = parameters("get_weather", {"city": "A", "days": 3})
    assert follows("parameters", Shape(TOOLS), text)
    assert json.loads(read(reading("parameters"), text).calls[0][1]) == {"city": "A", "days": 3}
    assert not follows("parameters", Shape(TOOLS), parameters("get_weather", {"days": 3}))
