"""Bare values become what the schema says they are."""

import json

import pytest

from flare.server.parsing.values import kinds, member_schema, only_text, typed


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "string"}, "5"),
        ("5", {"type": "integer"}, 5),
        ("5.0", {"type": "integer"}, 5),
        ("5.5", {"type": "integer"}, "5.5"),
        ("5", {"type": "number"}, 5),
        ("\n 1e3 ", {"type": "number"}, 1000.0),
        ("true", {"type": "boolean"}, True),
        ("False", {"type": "boolean"}, False),
        ("maybe", {"type": "boolean"}, "maybe"),
        ("null", {"type": ["string", "null"]}, None),
        ("None", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
        ("5", {"type": ["string", "null"]}, "5"),
        ('{"a": [1]}', {"type": "object"}, {"a": [1]}),
        ("{'a': 1}", {"type": "object"}, "{'a': 1}"),
        ("[1, 2]", {"type": "array"}, [1, 2]),
        ("NaN", {"type": "number"}, "NaN"),
        ("9" * 5000, {"type": "integer"}, "9" * 5000),
        ("[" * 100_000, {"type": "array"}, "[" * 100_000),
        ("5", {}, 5),
        ("00501", {}, "00501"),
        ("plain", {}, "plain"),
        (' a "quote" \\ \n', {}, ' a "quote" \\ \n'),
        ('"\\ud800"', {}, '"\\ud800"'),
        ("2", {"enum": [1, 2]}, 2),
        ("2", {"enum": ["1", "2"]}, "2"),
        ("2", {"const": 2}, 2),
    ],
)
def test_a_bare_value_is_typed_by_its_schema(text, schema, value):
    assert json.loads(typed(text, schema)) == value


def test_references_inside_the_schema_are_followed():
    schema = {
        "properties": {"unit": {"$ref": "#/$defs/Unit"}, "loop": {"$ref": "#/properties/loop"}, "no": {"$ref": "x"}},
        "$defs": {"Unit": {"enum": ["C", "F"]}},
    }
    assert only_text(member_schema(schema, "unit"))
    assert [member_schema(schema, key) for key in ("loop", "no", "absent")] == [{}, {}, {}]


def test_schemas_of_any_shape_are_borne():
    assert kinds({"type": 7, "anyOf": "x", "enum": {}}) == frozenset()
    assert kinds({"anyOf": [{"type": "string"}, True]}) == frozenset()
    assert member_schema({"properties": ["city"]}, "city") == {}
