"""Objects have no names that their schema does not mention, unless it allows them; and nothing else changes."""

import copy
import json
from typing import Any

import jsonschema
import pytest

from tests.kit.chat.constrained_walks import compiled, stops_of, take_text, walk_tokenizer
from tlserve.chat.dialect import FROM_NOTHING
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.grammars.answers import answer_grammar
from tlserve.chat.grammars.formats import schema_format
from tlserve.chat.grammars.schemas import checked_schema, closed_schema

A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
B = {"type": "object", "properties": {"b": {"type": "integer"}}}
CLOSED_A = {**A, "additionalProperties": False}
TOKENIZER = walk_tokenizer()


def kind(name: str, **members: Any) -> dict[str, Any]:
    properties = {"kind": {"const": name}, "n": {"type": "integer"}}
    return {"type": "object", "properties": properties, "required": ["kind"], **members}


def closed(schema: Any) -> Any:
    return closed_schema(checked_schema(schema, "place", "field"))


def accepts(schema: Any, text: str, *, closes: bool = True) -> bool:
    grammar = answer_grammar(schema_format(schema, "place", "field", closes=closes), None, PLAIN, FROM_NOTHING, {})
    assert grammar is not None
    constraint = compiled(grammar, TOKENIZER).start()
    (stop,) = stops_of(TOKENIZER)
    return take_text(constraint, TOKENIZER, text) and bool(constraint.mask()[stop // 32] >> stop % 32 & 1)


@pytest.mark.spec("CHAT-73")
@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (A, CLOSED_A),
        ({"type": "array", "items": A}, {"type": "array", "items": CLOSED_A}),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [CLOSED_A, {"type": "null"}]}),
        ({"$ref": "#/$defs/a", "$defs": {"a": A}}, {"$ref": "#/$defs/a", "$defs": {"a": CLOSED_A}}),
        ({"description": "x", "allOf": [A]}, {"allOf": [CLOSED_A]}),
        (
            {"oneOf": [kind("x"), kind("y")]},
            {"oneOf": [kind("x", additionalProperties=False), kind("y", additionalProperties=False)]},
        ),
        (
            {"type": "object", "additionalProperties": A},
            {"type": "object", "additionalProperties": CLOSED_A},
        ),
    ],
)
def test_an_object_that_lists_its_properties_is_closed_at_every_depth(schema: Any, expected: Any) -> None:
    before = copy.deepcopy(schema)
    assert closed(schema) == expected
    assert schema == before


@pytest.mark.spec("CHAT-73", "CHAT-76")
@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "object"},
        {**A, "additionalProperties": True},
        {**A, "additionalProperties": {"type": "string"}},
        {**A, "required": ["a", "zz"]},
        {**A, "patternProperties": {"^x": {"type": "string"}}},
        {**A, "minProperties": 2},
        {"allOf": [A, B]},
        {"oneOf": [A, {**B, "required": ["b"]}]},
        {"allOf": [{"$ref": "#/$defs/a"}, B], "$defs": {"a": A}},
        {"$ref": "#/$defs/a", "properties": {"b": A}, "$defs": {"a": A}},
        {"type": "object", "anyOf": [A, B]},
    ],
)
def test_an_object_that_can_need_other_names_stays_as_it_is(schema: Any) -> None:
    assert closed(schema) == schema


@pytest.mark.spec("CHAT-73", "CHAT-76")
@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        (A, '{"a": 1}', '{"a": 1, "zz": 2}'),
        ({**A, "additionalProperties": True}, '{"a": 1, "zz": 2}', '{"zz": 2}'),
        ({"allOf": [A, B]}, '{"a": 1, "b": 2}', '{"b": 2}'),
        ({"type": "object", "properties": {"x": A}}, '{"x": {"a": 1}}', '{"x": {"a": 1, "zz": 2}}'),
    ],
)
def test_an_answer_has_no_names_that_its_schema_does_not_mention(schema: Any, yes: str, no: str) -> None:
    assert accepts(schema, yes)
    assert not accepts(schema, no)
    jsonschema.validate(json.loads(yes), schema)


@pytest.mark.spec("API-163")
def test_a_schema_can_be_enforced_as_it_was_sent() -> None:
    assert accepts(A, '{"a": 1, "zz": 2}', closes=False)
