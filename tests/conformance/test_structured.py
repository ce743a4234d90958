"""Structured answers and tool calls of the official client with the real model; the masks make them valid."""

import json
from typing import Literal

import jsonschema
import openai
import pydantic
import pytest

from tests.conformance.fill_schema import answers, fault
from tests.conformance.test_openai_client import client_of
from tlserve.testing import serve_in_thread

pytestmark = pytest.mark.real_model
SMOL = "smol-135m"
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


class Animal(pydantic.BaseModel):
    """The type that the answers are parsed as."""

    name: str = pydantic.Field(max_length=12)
    kind: Literal["insect", "bird", "fish"]
    legs: int = pydantic.Field(ge=0, le=8)


def tool(name, parameters, **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


GET_WEATHER = tool("get_weather", WEATHER)
ADD = openai.pydantic_function_tool(Animal, name="note_animal")
ASK = {"model": SMOL, "messages": [{"role": "user", "content": "What is the weather in Paris?"}], "max_tokens": 160}


@pytest.fixture(scope="module")
def client(smol_path):
    with serve_in_thread(smol_path, settings={"engine.model_id": SMOL}) as server, client_of(server) as client:
        yield client


def check_weather(call):
    assert call.function.name == "get_weather"
    jsonschema.validate(json.loads(call.function.arguments), WEATHER)


@pytest.mark.spec("API-84")
def test_ten_of_ten_answers_fill_a_nested_schema_at_temperature_1(client):
    assert [wrong for text, finish in answers(client, 10, 7) if (wrong := fault(text, finish))] == []


@pytest.mark.spec("API-84")
def test_an_answer_is_parsed_as_a_pydantic_model(client):
    asked = {**ASK, "temperature": 1, "seed": 5}
    completion = client.chat.completions.parse(**asked, response_format=Animal, n=2)
    assert [type(choice.message.parsed) for choice in completion.choices] == [Animal, Animal]
    with client.chat.completions.stream(**asked, response_format=Animal) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion()
    assert streamed.choices[0].message.parsed == completion.choices[0].message.parsed


@pytest.mark.spec("API-85")
def test_a_required_call_is_streamed_and_joined_by_the_stream_helper(client):
    asked = {**ASK, "temperature": 1, "seed": 3, "tools": [GET_WEATHER, ADD], "tool_choice": "required"}
    whole = client.chat.completions.create(**asked, parallel_tool_calls=False).choices[0]
    with client.chat.completions.stream(**asked, parallel_tool_calls=False) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert kinds.count("tool_calls.function.arguments.delta") > 3
    assert kinds.count("tool_calls.function.arguments.done") == 1
    for choice in (whole, final):
        assert choice.finish_reason == "tool_calls"
        assert not choice.message.content
        assert len(choice.message.tool_calls) == 1
    calls = [choice.message.tool_calls[0].function for choice in (whole, final)]
    assert calls[0].arguments == calls[1].arguments
    assert calls[0].name == calls[1].name


@pytest.mark.spec("API-85")
def test_several_required_calls_are_all_valid(client):
    choice = client.chat.completions.create(**ASK, tools=[GET_WEATHER], tool_choice="required", temperature=0).choices[
        0
    ]
    assert choice.finish_reason == "tool_calls"
    for call in choice.message.tool_calls:
        check_weather(call)


@pytest.mark.spec("API-85", "API-145")
def test_a_named_tool_is_called_once_and_then_the_answer_stops(client):
    named = {"type": "function", "function": {"name": "get_weather"}}
    choice = client.chat.completions.create(**ASK, tools=[ADD, GET_WEATHER], tool_choice=named).choices[0]
    assert choice.finish_reason == "stop"
    (call,) = choice.message.tool_calls
    check_weather(call)


@pytest.mark.spec("API-83")
def test_a_call_that_the_limit_cuts_says_length(client):
    asked = {**ASK, "max_tokens": 12, "tools": [GET_WEATHER], "tool_choice": "required"}
    assert client.chat.completions.create(**asked).choices[0].finish_reason == "length"


@pytest.mark.spec("API-146")
def test_a_strict_tool_leaves_the_model_free_to_answer(client):
    strict = tool("get_weather", WEATHER, strict=True)
    choice = client.chat.completions.create(**ASK, tools=[strict], temperature=0).choices[0]
    assert choice.finish_reason in ("stop", "tool_calls", "length")
    assert choice.message.content or choice.message.tool_calls


@pytest.mark.spec("API-84")
@pytest.mark.parametrize(
    ("held", "pattern"),
    [
        ({"regex": "[A-Z][a-z]{1,8}, [0-9]{4}"}, "^[A-Z][a-z]{1,8}, [0-9]{4}$"),
        ({"choice": ["warm", "cold"]}, "^(warm|cold)$"),
        ({"grammar": 'start: "It is " /[a-z]{3,9}/ "."'}, r"^It is [a-z]{3,9}\.$"),
        ({"json": {"enum": ["a", 1]}}, '^("a"|1)$'),
    ],
)  # fmt: skip
def test_both_routes_enforce_patterns_choices_and_grammars(client, held, pattern):
    chat = client.chat.completions.create(**ASK, n=3, extra_body={"structured_outputs": held})
    raw = client.completions.create(model=SMOL, prompt="So", max_tokens=30, extra_body={"structured_outputs": held})
    for text in (*(choice.message.content for choice in chat.choices), raw.choices[0].text):
        jsonschema.validate(text, {"type": "string", "pattern": pattern})


@pytest.mark.spec("API-144")
def test_an_answer_with_a_format_can_have_log_probabilities(client):
    held = {"structured_outputs": {"choice": ["warm", "cold"]}}
    choice = client.chat.completions.create(**ASK, logprobs=True, top_logprobs=2, extra_body=held).choices[0]
    entries = choice.logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == choice.message.content
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in entries)


@pytest.mark.spec("API-144")
def test_a_seed_repeats_an_answer_with_a_format_next_to_others(client):
    asked = {**ASK, "seed": 11, "temperature": 1, "response_format": {"type": "json_object"}, "max_tokens": 40}
    alone = client.chat.completions.create(**asked).choices[0].message.content
    together = client.chat.completions.create(**asked, n=4).choices
    assert together[0].message.content == alone
    assert len({choice.message.content for choice in together}) > 1


BAD = [
    ({"structured_outputs": {"regex": "a("}}, "structured_outputs.regex"),
    ({"structured_outputs": {"grammar": "start: b"}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"guided_json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "guided_json"),
    ({"structured_outputs": {"choice": ["a"]}, "ignore_eos": True}, "structured_outputs.choice"),
    ({"tool_choice": "required"}, "tool_choice"),
]


@pytest.mark.spec("API-81")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("body", "param"), BAD)
def test_an_unenforceable_format_is_400_before_the_head_with_its_field(client, body, param, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASK, stream=stream, extra_body=body)
    assert caught.value.param == param
    assert caught.value.body["message"].startswith(param)
