"""`response_format`, `structured_outputs` and their older spellings: the format of each, and refusals."""

import json
from typing import Any

import pytest

from tlserve.chat.dialect import PlacedSchema
from tlserve.chat.grammars.formats import AnswerFormat
from tlserve.errors import ClientError, Refusal
from tlserve.openai.requests import parse_chat, parse_completion

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = {**SCHEMA, "additionalProperties": False}
NAMED = {"name": "n", "schema": SCHEMA, "strict": True, "description": "d"}


def chat(**fields: Any) -> AnswerFormat | None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return parse_chat(json.dumps(body).encode()).options.format


def completion(**fields: Any) -> AnswerFormat | None:
    return parse_completion(json.dumps({"model": "m", "prompt": "x", **fields}).encode()).options.format


def placed(found: AnswerFormat | None) -> PlacedSchema:
    assert found is not None
    return found.schemas["answer"]


@pytest.mark.spec("API-80")
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"json": None, "json_object": False, "disable_any_whitespace": False}},
        {"regex": "", "choice": [], "grammar": ""},
    ],
)
def test_every_way_to_ask_for_no_format_gives_none(fields: dict[str, Any]) -> None:
    assert chat(**fields) is None
    assert completion(**fields) is None


@pytest.mark.spec("API-80", "API-154", "API-163")
@pytest.mark.parametrize(
    ("fields", "schema", "place"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": NAMED}},
            CLOSED,
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, {}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object"}}, {"type": "object"}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": None}}, {"type": "object"}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, CLOSED, "response_format.schema"),
        ({"json_schema": SCHEMA}, CLOSED, "json_schema"),
        ({"json_schema": json.dumps(SCHEMA)}, CLOSED, "json_schema"),
        ({"structured_outputs": {"json": SCHEMA}}, CLOSED, "structured_outputs.json"),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, CLOSED, "structured_outputs.json"),
        ({"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}}, CLOSED, "structured_outputs.json"),
        ({"structured_outputs": {"json": SCHEMA, "disable_additional_properties": False}}, SCHEMA, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": True}}, {"type": "object"}, "structured_outputs.json_object"),
        ({"guided_json": SCHEMA}, CLOSED, "guided_json"),
    ],
)  # fmt: skip
def test_a_json_schema_is_read_with_its_place(fields: Any, schema: Any, place: str) -> None:
    assert placed(chat(**fields)) == PlacedSchema(place, schema)
    assert placed(completion(**fields)) == PlacedSchema(place, schema)


@pytest.mark.spec("API-80")
@pytest.mark.parametrize("kind", ["regex", "choice", "grammar"])
def test_the_older_spellings_mean_the_same(kind: str) -> None:
    value = {"regex": "a+", "choice": ["a", "b"], "grammar": 'start: "a"'}[kind]
    found = chat(structured_outputs={kind: value})
    assert found is not None
    for older in (kind, f"guided_{kind}"):
        same = chat(**{older: value})
        assert same is not None
        assert (same.rule, same.larks) == (found.rule, found.larks)
        assert (found.field, same.field) == (f"structured_outputs.{kind}", older)


@pytest.mark.spec("CHAT-44", "CASE-43")
@pytest.mark.parametrize(
    ("members", "blanks"),
    [
        ({"whitespace_pattern": r"[ \n]{0,4}"}, r"[ \n]{0,4}"),
        ({"whitespace_pattern": r"\n? {2}"}, r"\n? {2}"),
        ({"disable_any_whitespace": True}, ""),
    ],
)
def test_white_space_can_be_chosen_within_bounds(members: Any, blanks: str) -> None:
    assert placed(chat(structured_outputs={"json": {}, **members})).blanks == blanks


SO = "structured_outputs"
FORMAT = "response_format"
FAULTS = [
    (400, FORMAT, {FORMAT: {"type": "json_schema"}}),
    (400, FORMAT, {FORMAT: {"type": "json_schema", "json_schema": {}}}),
    (400, FORMAT, {FORMAT: {"type": "json_schema", "json_schema": {"name": ""}}}),
    (400, FORMAT, {FORMAT: {"type": "json_schema", "json_schema": {"name": "n", "schema": "x"}}}),
    (400, FORMAT, {FORMAT: {"type": "json_schema", "json_schema": {"name": "n", "schema": False}}}),
    (400, FORMAT, {FORMAT: {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}}),
    (400, f"{SO}.json", {SO: {"json": "{"}}),
    (400, f"{SO}.json", {SO: {"json": "[" * 100_000}}),
    (400, f"{SO}.json", {SO: {"json": 5}}),
    (400, f"{SO}.regex", {SO: {"regex": ""}}),
    (400, f"{SO}.choice", {SO: {"choice": []}}),
    (400, f"{SO}.choice", {SO: {"choice": ["a", 1]}}),
    (400, f"{SO}.grammar", {SO: {"grammar": ""}}),
    (400, f"{SO}.whitespace_pattern", {SO: {"json": {}, "whitespace_pattern": r"\s*"}}),
    (400, f"{SO}.whitespace_pattern", {SO: {"json": {}, "whitespace_pattern": " +"}}),
    (400, f"{SO}.whitespace_pattern", {SO: {"regex": "a", "whitespace_pattern": " ?"}}),
    (400, f"{SO}.whitespace_pattern", {SO: {"whitespace_pattern": " ?"}}),
    (422, f"{SO}.structural_tag", {SO: {"structural_tag": "{}"}}),
    (400, f"{SO}.disable_additional_properties", {SO: {"regex": "a", "disable_additional_properties": True}}),
    (400, SO, {SO: []}),
    (400, f"{SO}.regex", {FORMAT: {"type": "json_object"}, SO: {"regex": "a"}}),
    (400, f"{SO}.regex", {SO: {"json": {}, "regex": "a"}}),
    (400, "regex", {SO: {"json": {}}, "regex": "a"}),
    (400, "guided_choice", {"regex": "a", "guided_choice": ["b"]}),
]


@pytest.mark.spec("API-80")
@pytest.mark.parametrize(("status", "param", "fields"), FAULTS)
def test_a_wrong_format_is_400_and_an_unsupported_one_422(status: int, param: str, fields: dict[str, Any]) -> None:
    for ask in (chat, completion):
        with pytest.raises(ClientError) as refused:
            ask(**fields)
        assert (refused.value.param, isinstance(refused.value, Refusal)) == (param, status == 422)


@pytest.mark.spec("API-142")
def test_unknown_names_inside_are_reported() -> None:
    body = {"model": "m", "prompt": "x", "structured_outputs": {"wibble": 1}}
    assert parse_completion(json.dumps(body).encode()).ignored == ("structured_outputs.wibble",)
