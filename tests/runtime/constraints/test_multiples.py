"""Multiples that would keep a compiler busy for minutes are refused; those that cost nothing are not."""

import json
import time
from typing import Any

import pytest

from flare.errors import RequestError
from flare.runtime.constraints import Grammars, schema_text
from flare.runtime.constraints.wishes import Wish
from tests.server.serving import byte_vocabulary


def compiled(schema: dict[str, Any], lark: bool = False) -> None:
    text = f"start: %json {json.dumps(schema)}" if lark else schema_text(schema)
    wish = Wish("grammar", "lark", text) if lark else Wish("json_schema", "json_schema", text)
    Grammars(byte_vocabulary(), byte_vocabulary().size).compile(wish)


@pytest.mark.parametrize("lark", [False, True])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 1_429_496},
        {"type": "number", "multipleOf": 1.429496},
        {"type": "integer", "multipleOf": 1e300},
        {"allOf": [{"multipleOf": 10_000 + each} for each in range(4000)]},
        {"allOf": [{"type": "integer", "multipleOf": 1096}, {"multipleOf": 1303}]},
    ],
)
def test_too_many_remainders_are_refused_before_they_are_walked(schema, lark):
    began_s = time.perf_counter()
    with pytest.raises(RequestError, match=r"cannot be followed: .*too large, at most 500000"):
        compiled(schema, lark)
    assert time.perf_counter() - began_s < 5


@pytest.mark.parametrize("lark", [False, True])
@pytest.mark.parametrize("multiple", [1, 0.01, 1e-7, 0.25, 86_400, 99_991, 1_000_000])
def test_usual_multiples_are_followed(multiple, lark):
    compiled({"type": "number", "multipleOf": multiple}, lark)


@pytest.mark.parametrize("written", ["1e9999999", "-1e9999999", "1" * 5000, "1e999999999999999999999"])
def test_numbers_beyond_any_type_are_refused_too(written):
    with pytest.raises(RequestError, match="cannot be followed"):
        Grammars(byte_vocabulary(), byte_vocabulary().size).compile(
            Wish("json_schema", "json_schema", f'{{"type": "number", "multipleOf": {written}}}')
        )


def test_multiples_that_never_meet_are_not_multiplied():
    compiled({"type": "object", "properties": {f"a{each}": {"multipleOf": each} for each in (1096, 1303, 1709)}})


def test_a_value_of_the_same_name_is_no_multiple():
    compiled({"type": "object", "properties": {"multipleOf": {"type": "string"}}})


def test_a_pattern_that_spells_one_is_no_multiple():
    Grammars(byte_vocabulary(), byte_vocabulary().size).compile(Wish("regex", "regex", '"multipleOf": 1429496'))
