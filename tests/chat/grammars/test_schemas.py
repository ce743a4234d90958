"""Every keyword of a JSON schema is enforced, or refused by its name and place."""

from typing import Any

import pytest

from tests.kit.chat.constrained_walks import compiled, stops_of, take_text, walk_tokenizer
from tlserve.chat.dialect import FROM_NOTHING
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.grammars.answers import answer_grammar
from tlserve.chat.grammars.formats import schema_format
from tlserve.chat.grammars.patterns import as_rust
from tlserve.chat.grammars.schemas import checked_schema, lenient_schema
from tlserve.errors import ClientError

PLACE = "response_format.json_schema.schema"
FIELD = "response_format"
TOKENIZER = walk_tokenizer()
LOOP = {"$ref": "#/$defs/loop"}
LIST = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}},
    "required": ["value", "next"],
    "additionalProperties": False,
}


def compile_schema(schema):
    grammar = answer_grammar(schema_format(schema, PLACE, FIELD), None, PLAIN, FROM_NOTHING, {})
    assert grammar is not None
    return compiled(grammar, TOKENIZER)


def refusal(schema) -> str:
    with pytest.raises(ClientError) as caught:
        compile_schema(schema)
    assert caught.value.param == FIELD
    return caught.value.message


def accepts(schema, text) -> bool:
    constraint = compile_schema(schema).start()
    (stop,) = stops_of(TOKENIZER)
    return take_text(constraint, TOKENIZER, text) and bool(constraint.mask()[stop // 32] >> stop % 32 & 1)


@pytest.mark.spec("CASE-25", "CHAT-40")
@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "array", "uniqueItems": True}, ".uniqueItems"),
        ({"properties": {"a": {"not": {"type": "string"}}}}, ".properties.a.not"),
        ({"if": {"type": "string"}, "then": {"maxLength": 2}}, ".if"),
        ({"then": {"maxLength": 2}}, ".then"),
        ({"anyOf": [{"type": "null"}, {"dependentRequired": {"a": ["b"]}}]}, ".anyOf[1].dependentRequired"),
        ({"type": "array", "items": {"contains": {"const": 1}}}, ".items.contains"),
        ({"type": "object", "propertyNames": {"maxLength": 2}}, ".propertyNames"),
        ({"type": "object", "unevaluatedProperties": False}, ".unevaluatedProperties"),
        ({"type": "object", "minProperties": 2}, ".minProperties"),
        ({"type": "string", "format": "regex"}, ".format"),
        ({"type": "string", "pattern": "(?=a)b"}, ".pattern"),
        ({"type": "string", "pattern": "(a)\\1"}, ".pattern"),
        ({"type": "string", "pattern": "\\bword\\b"}, ".pattern"),
        ({"$defs": {"a": {"$ref": "http://example.com/x.json"}}}, ".$defs.a.$ref"),
        ({"$ref": "#/$defs/missing"}, ".$ref"),
        ({"$ref": "#/$defs/a/type", "$defs": {"a": {"type": "string"}}}, ".$ref"),
        ({"$dynamicRef": "#x"}, ".$dynamicRef"),
        ({"format": "time", "pattern": "^1"}, ".pattern"),
        ({"type": "array", "items": [{"type": "integer"}]}, ".items"),
        ({"type": "object", "dependencies": {"a": ["b"]}}, ".dependencies"),
        ({"type": "string", "nullable": True}, ".nullable"),
        ({"properties": {"a": {"$id": "other"}}}, ".properties.a.$id"),
        ({"type": "integer", "wibble": 1}, ".wibble"),
        ({"exclusiveMinimum": True}, ".exclusiveMinimum"),
        ({"type": "integer", "maximum": 2**60}, ".maximum"),
        ({"const": 12345678901234567890}, ".const"),
        ({"enum": [{"a": [2**60]}]}, ".enum"),
        ({"enum": []}, ".enum"),
        ({"multipleOf": 0}, ".multipleOf"),
        ({"type": "text"}, ".type"),
        ({"required": "a"}, ".required"),
        ({"anyOf": {}}, ".anyOf"),
        ({"properties": {"a": 3}}, ".properties.a"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_by_place(schema, place) -> None:
    assert refusal(schema).startswith(f"{PLACE}{place} ")


@pytest.mark.spec("CHAT-40")
@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}, ".properties.a"),
        (
            {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1, "$defs": {"x": {"pattern": "(["}}},
            ".$defs.x",
        ),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "string", "minLength": 5, "maxLength": 3}},
                "required": ["a"],
            },
            ".properties.a",
        ),
        ({"type": "object", "required": ["b"], "additionalProperties": False}, ""),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, ""),
        ({"type": "string", "pattern": "^(a{1000}){1000}$"}, ""),
    ],
)
def test_a_schema_that_the_compiler_refuses_is_refused_by_place(schema, place) -> None:
    assert refusal(schema).startswith(f"{PLACE}{place} cannot be compiled: ")


@pytest.mark.spec("CHAT-42")
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {**LOOP, "$defs": {"loop": LOOP}},
        {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"items": LOOP, "$defs": {"loop": {**LIST, "required": ["next"], "properties": {"next": LOOP}}}},
        {"allOf": [LOOP], "$defs": {"loop": {"type": "array", "prefixItems": [LOOP], "minItems": 1}}},
    ],
)  # fmt: skip
def test_a_schema_that_refers_to_itself_endlessly_is_refused(schema) -> None:
    assert "refers to itself endlessly" in refusal(schema)


@pytest.mark.spec("CHAT-42")
def test_chains_of_references_can_be_long_but_not_unbounded() -> None:
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)}
    whole = {"$ref": "#/$defs/d0", "$defs": {**chain, "d3000": {"type": "null"}}}
    assert checked_schema(whole, PLACE, FIELD) == whole
    assert "refers to itself" in refusal({"$ref": "#/$defs/d0", "$defs": {**chain, "d3000": {"$ref": "#/$defs/d0"}}})
    assert refusal({"anyOf": [{}] * 20_001}) == f"{PLACE} contains more than 20000 schemas"


@pytest.mark.spec("CHAT-42")
def test_a_schema_that_nests_too_deep_is_refused() -> None:
    nested: dict[str, Any] = {"const": 1}
    for _ in range(2000):
        nested = {"items": nested}
    assert refusal(nested) == f"{PLACE} is nested too deeply"


@pytest.mark.spec("CHAT-40")
def test_a_schema_that_nothing_matches_is_refused() -> None:
    assert refusal(False) == f"{PLACE} is false, so no value matches it"
    assert refusal("string").startswith(f"{PLACE} is not a JSON schema")


@pytest.mark.spec("CASE-25", "CHAT-40")
def test_annotations_are_accepted_and_have_no_effect() -> None:
    said = {"title": "T", "description": "d", "default": 1, "examples": [1], "$schema": "x", "$id": "y", "x-order": 3}
    assert checked_schema({**said, "type": "integer", "uniqueItems": False}, PLACE, FIELD) == {"type": "integer"}


@pytest.mark.spec("CHAT-42")
def test_a_schema_can_refer_to_itself_if_that_ends() -> None:
    schema = {"$ref": "#/$defs/list", "$defs": {"list": LIST}}
    assert accepts(schema, '{"value": 1, "next": {"value": 2, "next": null}}')
    assert not accepts(schema, '{"value": 1, "next": {"value": "2", "next": null}}')


@pytest.mark.spec("CHAT-44", "CASE-43")
@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"a":1,"b":2}', True),
        ('{"a": 1, "b": 2}', True),
        ('{"a":  1, "b": 2}', False),
        ('{ "a": 1, "b": 2}', False),
        ('{"a": 1,\n"b": 2}', False),
        ('{"a": 1, "b": 2} ', False),
    ],
)
def test_white_space_between_the_parts_is_at_most_one_space(text, right) -> None:
    numbers = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    assert accepts(numbers, text) == right


@pytest.mark.spec("CHAT-43")
@pytest.mark.parametrize(
    ("pattern", "rust"),
    [
        ("^a.b$", r"^a[^\n\r\u2028\u2029]b$"),
        (r"a\.b[.]", r"a\.b[.]"),
        ("[[a]", r"[\[a]"),
        ("[a&&b~~]", r"[a\&\&b\~\~]"),
        (r"[^\]a[]x.", r"[^\]a\[]x[^\n\r\u2028\u2029]"),
    ],
)
def test_patterns_have_the_meaning_of_ecmascript(pattern, rust) -> None:
    assert as_rust(pattern) == rust


@pytest.mark.spec("CHAT-43")
def test_a_class_of_a_pattern_holds_its_characters() -> None:
    schema = {"type": "string", "pattern": "^[a&&b[]{1,4}$"}
    assert accepts(schema, '"a&b["')
    assert not accepts(schema, '"c"')


@pytest.mark.spec("CHAT-54")
def test_a_lenient_walk_leaves_out_only_the_unenforceable_parts() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "not": {"const": ""}, "maxLength": 3}, "b": {"$ref": "http://x"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        "wibble": 1,
    }
    assert lenient_schema(schema, PLACE, FIELD) == {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 3}, "b": {}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }


@pytest.mark.spec("CHAT-54")
def test_a_lenient_walk_refuses_a_value_that_is_not_a_schema() -> None:
    with pytest.raises(ClientError, match="is not a JSON schema"):
        lenient_schema([], PLACE, FIELD)
