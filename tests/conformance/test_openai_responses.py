"""The official openai client with responses: whole, streamed, parsed, chained, in the background; each kind of server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tlserve.testing import serve_in_thread

HAND: dict[str, Any] = {"model": "succ", "max_output_tokens": 3, "input": "a", "temperature": 0}
ADD: dict[str, Any] = {
    "type": "function",
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "strict": True,
}
CODE: dict[str, Any] = {
    "type": "custom",
    "name": "code",
    "description": "Runs a command.",
    "format": {
        "type": "grammar",
        "syntax": "lark",
        "definition": 'start: ("ls" | "cat") " " WORD\n%import common.WORD',
    },
}


class Pair(BaseModel):
    """An answer of two numbers."""

    first: int
    second: bool


@pytest.fixture(scope="module")
def client(succ_server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=succ_server.base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.spec("RSP-32")
def test_a_response_answers(client: openai.OpenAI) -> None:
    response = client.responses.create(**HAND)
    assert (response.output_text, response.status) == ("bcd", "incomplete")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.spec("RSP-32")
def test_the_stream_helper_assembles_the_whole_response(client: openai.OpenAI) -> None:
    with client.responses.stream(**HAND, extra_body={"stop": "d"}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert (kinds[0], kinds[-1], final.output_text) == ("response.created", "response.completed", "bc")
    text = "".join(
        event.delta
        for event in client.responses.create(**HAND, stream=True)
        if event.type == "response.output_text.delta"
    )
    assert text == "bcd"


@pytest.mark.spec("RSP-32", "RSP-20", "RSP-24", "RSP-25")
def test_responses_are_chained_listed_and_deleted(client: openai.OpenAI) -> None:
    first = client.responses.create(**HAND)
    second = client.responses.create(**{**HAND, "input": "e"}, previous_response_id=first.id)
    assert client.responses.retrieve(second.id).output_text == second.output_text == "fgh"
    items = list(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [item.content[0].text for item in items] == ["a", "bcd", "e"]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**HAND, previous_response_id=second.id)
    assert caught.value.code == "previous_response_not_found"


@pytest.mark.spec("RSP-32", "RSP-27", "RSP-26", "RSP-28")
def test_a_response_in_the_background_is_polled_resumed_and_cancelled(client: openai.OpenAI) -> None:
    response = client.responses.create(**HAND, background=True)
    while response.status in ("queued", "in_progress"):
        response = client.responses.retrieve(response.id)
    assert response.output_text == "bcd"
    assert client.responses.cancel(response.id).status == "incomplete"
    events = list(client.responses.create(**HAND, background=True, stream=True))
    again = list(client.responses.retrieve(events[0].response.id, stream=True, starting_after=3))
    assert again == events[4:]


@pytest.mark.spec("RSP-32", "RSP-5")
def test_errors_are_typed(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'nothing' is not served"):
        client.responses.create(**{**HAND, "model": "nothing"})
    with pytest.raises(openai.UnprocessableEntityError, match="web_search"):
        client.responses.create(**HAND, tools=[{"type": "web_search"}])
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{**HAND, "input": "a" * 100_000})
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.slow
@pytest.mark.real_model
@pytest.mark.spec("RSP-32", "RSP-6", "RSP-7", "RSP-9")
def test_a_real_model_is_parsed_and_calls_both_kinds_of_tools(smol_path: Path) -> None:
    sure: dict[str, Any] = {"model": "smol", "temperature": 0, "max_output_tokens": 100}
    with (
        serve_in_thread(smol_path, settings={"engine.model_id": "smol"}) as server,
        openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client,
    ):
        parsed = client.responses.parse(**sure, input="Give me a pair.", text_format=Pair)
        called = client.responses.create(
            **sure, input="Add 3.", tools=[ADD], tool_choice="required", parallel_tool_calls=False
        )
        custom = client.responses.create(
            **sure, input="List the files.", tools=[CODE], tool_choice={"type": "custom", "name": "code"}
        )
        answered = client.responses.create(
            **sure,
            previous_response_id=called.id,
            input=[{"type": "function_call_output", "call_id": called.output[0].call_id, "output": "8"}],
        )
    assert isinstance(parsed.output_parsed, Pair)
    (call,), (command,) = called.output, custom.output
    assert (call.type, call.name) == ("function_call", "add")
    assert command.type == "custom_tool_call"
    assert re.fullmatch("(ls|cat) [A-Za-z]+", command.input)
    assert answered.output_text
