"""The official anthropic client as it is used: whole and streamed messages, calls, counts, typed errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tlserve.testing import serve_in_thread

HAND: dict[str, Any] = {"model": "succ", "max_tokens": 3, "messages": [{"role": "user", "content": "a"}]}
SURE: dict[str, Any] = {"extra_body": {"temperature": 0}}
KEY = "sk-a-long-enough-key-of-a-test"
ADD: dict[str, Any] = {
    "name": "add",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"],
    },
}
ADDING: Any = [{"role": "user", "content": "Add 3 and nothing else."}]
FORCED: dict[str, Any] = {"tools": [ADD], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}


def client_of(server: Any, **options: Any) -> anthropic.Anthropic:
    """Return a client that tries once, unless `options` change that."""
    defaults = {"base_url": f"http://{server.address}", "api_key": "none", "max_retries": 0}
    return anthropic.Anthropic(**{**defaults, **options})


@pytest.fixture(scope="module")
def client(succ_server: Any) -> Iterator[anthropic.Anthropic]:
    with client_of(succ_server) as client:
        yield client


@pytest.mark.spec("MSG-17")
def test_a_message_answers(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(**HAND, **SURE)
    (block,) = answer.content
    assert (block.text, answer.stop_reason, answer.usage.output_tokens) == ("bcd", "max_tokens", 3)  # type: ignore[union-attr]
    assert answer._request_id


@pytest.mark.spec("MSG-17")
def test_the_stream_helper_assembles_the_whole_message(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**HAND, **SURE, stop_sequences=["d"]) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert (text, final.stop_reason, final.stop_sequence) == ("bc", "stop_sequence", "d")
    assert (final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0), final.usage.output_tokens) == (1, 3)


@pytest.mark.spec("MSG-17", "MSG-16", "MSG-18")
def test_tokens_are_counted_and_models_listed(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="succ", messages=HAND["messages"])
    assert (counted.input_tokens, [model.id for model in client.models.list()]) == (1, ["succ"])
    assert client.models.retrieve("succ").max_input_tokens == client.models.list().data[0].max_input_tokens


@pytest.mark.spec("MSG-17", "MSG-14")
def test_errors_are_typed(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        client.messages.create(**{**HAND, "model": "nothing"})
    with pytest.raises(anthropic.BadRequestError, match="temperature") as caught:
        client.messages.create(**HAND, extra_body={"temperature": 5})
    assert caught.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(**{**HAND, "messages": [{"role": "user", "content": "a" * 100_000}]})


@pytest.mark.spec("MSG-17", "MSG-6")
def test_a_forced_call_comes_whole_and_streamed(smol_path: Path) -> None:
    fields: dict[str, Any] = {"max_tokens": 100, "messages": ADDING, **FORCED}
    with serve_in_thread(smol_path, settings={"engine.model_id": "smol"}) as server, client_of(server) as client:
        whole = client.messages.create(model="smol", **fields, **SURE)
        with client.messages.stream(model="smol", **fields, **SURE) as stream:
            streamed = stream.get_final_message()
    for message in (whole, streamed):
        (block,) = message.content
        assert (block.type, message.stop_reason) == ("tool_use", "tool_use")
        assert block.name == "add"
        assert block.input["a"] in range(10)  # type: ignore[index]
    assert whole.content[0].input == streamed.content[0].input  # type: ignore[union-attr]


@pytest.mark.spec("MSG-14", "ACC-66")
def test_a_key_is_taken_as_the_client_sends_it() -> None:
    with serve_in_thread("succ", settings={"access.api_key": KEY}) as server:
        with client_of(server) as wrong, pytest.raises(anthropic.AuthenticationError):
            wrong.messages.create(**HAND)
        with client_of(server, api_key=KEY) as right:
            assert right.messages.create(**HAND).stop_reason == "max_tokens"
        with client_of(server, api_key=None, auth_token=KEY) as bearer:
            assert bearer.messages.create(**HAND).stop_reason == "max_tokens"
