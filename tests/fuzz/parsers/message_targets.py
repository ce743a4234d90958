"""The parsers of messages: bodies and header fields of requests, and the calls and answers of a fleet."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from tests.fuzz.mutations import NUMBERS, TEXTS, changed_bytes, changed_document, changed_text, written
from tests.fuzz.parsers.target import Target
from tests.fuzz.parsers.text_targets import schema
from tlserve import generation
from tlserve.access.credentials import authenticate
from tlserve.access.door import Entry
from tlserve.access.keys import KeyRing, global_key
from tlserve.access.request_id import choose_request_id
from tlserve.api.errors import describe_error
from tlserve.config.addresses import parse_address, parse_listen
from tlserve.endpoints.request_headers import read_generation_headers
from tlserve.errors import ClientError, SettingsError, TlserveError
from tlserve.fleet import link, wire
from tlserve.fleet.remote_node import CALLS
from tlserve.http.messages import Headers, HttpFault
from tlserve.openai import requests
from tlserve.responses.requests import parse_response
from tlserve.telemetry.tracing import trace_id_of

# --- bodies --------------------------------------------------------------------------------------------------------------

_CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "bob"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
        {"role": "assistant", "content": "ok", "reasoning_content": "hm"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
    },
    "stop": ["a", "b"],
    "logit_bias": {"1": 5},
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "n": 2,
    "seed": 7,
    "logprobs": True,
    "top_logprobs": 3,
    "chat_template_kwargs": {"enable_thinking": False},
}
_COMPLETION = {
    "model": "m",
    "prompt": ["a", "b"],
    "echo": True,
    "logprobs": 3,
    "max_tokens": 5,
    "best_of": 1,
    "structured_outputs": {"regex": "a+"},
}
_EMBEDDINGS = {"model": "m", "input": [[1, 2], [3]], "encoding_format": "base64", "dimensions": 4, "user": "u"}
_TOKENIZE = {"model": "m", "text": "a", "add_special_tokens": False}
_DETOKENIZE = {"model": "m", "tokens": [1, 2, 3]}
_RESPONSE = {
    "model": "m",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "5"}]},
        {"type": "custom_tool_call", "call_id": "c2", "name": "c", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "6"},
        {"type": "item_reference", "id": "msg_1_0"},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None},
        {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "regex", "definition": "a+"}},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "metadata": {"a": "b"},
    "instructions": "Be short.",
    "truncation": "auto",
}
_BODY_WORDS: Sequence[Any] = (
    *(
        "text",
        "function",
        "user",
        "developer",
        "auto",
        "required",
        "none",
        "json_object",
        "low",
        "base64",
        "float",
        "image_url",
        "refusal",
    ),
    {"type": "image_url", "image_url": {"url": "data:,"}},
    {"type": "json_schema", "json_schema": {"name": "n", "schema": {"$ref": "#"}}},
    {"json": '{"type": "string"}', "whitespace_pattern": "[ ]{0,2}"},
    {"grammar": 'root ::= "a"'},
    {"choice": ["a", "b"]},
    *([[1, 2]], [[]], ["", ""], [1, "a"], 0, 1, -1, 2, 128, 129, 1e-3, True, False, None, "", {}, []),
)


def body(document: dict[str, Any], rng: random.Random) -> bytes:
    """Return a body near to `document`; one in ten chats has a schema of its own."""
    changed = changed_document(rng, document, _BODY_WORDS)
    if "messages" in document and isinstance(changed, dict) and rng.random() < 0.1:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema(rng)}}
        changed = {**changed, "response_format": form}
    return written(rng, changed)


def use_response(data: bytes) -> object:
    """Parse a body of the Responses API, and make its chat of the items that need no store."""
    request = parse_response(data)
    return request.chat([item for item in request.items if item["type"] != "item_reference"])


def body_target(name: str, document: dict[str, Any], parse: Callable[[bytes], object], share: int) -> Target:
    return Target(name=name, make=partial(body, document), use=parse, refusals=(ClientError,), share=share)


BODIES = (
    body_target("chat-body", _CHAT, requests.parse_chat, 300),
    body_target("response-body", _RESPONSE, use_response, 300),
    body_target("completion-body", _COMPLETION, requests.parse_completion, 200),
    body_target("embeddings-body", _EMBEDDINGS, requests.parse_embeddings, 200),
    body_target("tokenize-body", _TOKENIZE, requests.parse_tokenize, 100),
    body_target("detokenize-body", _DETOKENIZE, requests.parse_detokenize, 100),
)

# --- header fields and addresses -----------------------------------------------------------------------------------------

_FIELDS = (
    ("Authorization", "Bearer a-key"),
    ("Authorization", "Basic YTpi"),
    ("X-Api-Key", "a-key"),
    ("X-Request-Id", "a-b_c.1"),
    ("X-TL-Deadline-Ms", "1500"),
    ("X-TL-Priority", "5"),
    ("X-TL-Strict", "true"),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
)
_FIELD_WORDS = (
    "Bearer",
    " ",
    ",",
    "1e9",
    "-1",
    "0x10",
    "nan",
    "inf",
    "\u0663",
    "\u00b2",
    "true",
    "=",
    "9" * 5000,
    "+1",
    "_",
    "00-",
    "\xff",
    "\x7f",
)
_RING = KeyRing([global_key("a-key")])


def fields(rng: random.Random) -> list[tuple[str, str]]:
    chosen = rng.choices(_FIELDS, k=rng.choice((1, 2, 4)))
    return [
        (name, changed_text(rng, value, _FIELD_WORDS).encode("latin-1", "replace").decode("latin-1"))
        for name, value in chosen
    ]


def use_fields(given: list[tuple[str, str]]) -> None:
    headers = Headers(tuple(given))
    choose_request_id(headers.get("X-Request-Id"), lambda: "fresh")
    trace_id_of(headers.get("traceparent"))
    with contextlib.suppress(HttpFault):
        authenticate(_RING, headers, 0.0)
    read_generation_headers(headers, Entry(may_set_priority=True))


def address(rng: random.Random) -> str:
    return changed_text(
        rng,
        rng.choice(("127.0.0.1:8000", "[::1]:80", ":8000", "unix:/tmp/x.sock", "localhost:0", "[fe80::1%eth0]:1")),
        _FIELD_WORDS,
    )


def use_address(text: str) -> None:
    with contextlib.suppress(SettingsError):
        parse_address(text)
    parse_listen(text)


# --- the fleet -----------------------------------------------------------------------------------------------------------

_KEY = link.SessionKey("head", 1, 2)
_REQUEST = generation.GenerationRequest(prompt=(1, 2, 3), max_tokens=4, seed=7)
_STATISTICS = generation.EngineStatistics()
_REPLY = link.PollReply(
    incarnation="i",
    sessions=(
        link.SessionEvents(
            key=_KEY,
            start=0,
            events=(
                generation.PrefillStarted(3),
                generation.TokenEvent(0, 5, -0.5, (generation.TokenLogprob(5, -0.5),)),
            ),
            error=None,
        ),
        link.SessionEvents(key=_KEY, start=3, events=(), error=link.NodeLost("gone", retry_after_s=2)),
    ),
    unknown=(_KEY,),
    statistics=_STATISTICS,
    draining=False,
)
_CALLED: Sequence[tuple[type, bytes]] = (
    (CALLS["place"].arguments, wire.write((_KEY, _REQUEST, 5.0))),
    (CALLS["poll"].arguments, wire.write(("head", [link.Ack(_KEY, 3, 64)], 0.5))),
    (CALLS["cancel"].arguments, wire.write(([_KEY],))),
    (CALLS["embed"].arguments, wire.write(generation.EmbeddingRequest(inputs=((1, 2),)))),
)
_POLLED = wire.write(wire.reply_of(wire.poll_answer_of(_REPLY)))
_FAILED = wire.write(wire.Reply(fault=wire.fault_of(ClientError("no", param="p", code="c"))))
_EMBEDDED = wire.write(wire.reply_of([b"\0\0\0\0\0\0\x80\x3f"]))


def _packed(rng: random.Random, message: bytes) -> bytes:
    """Return the message changed: half of the time as a document, else as bytes."""
    if rng.random() < 0.5:
        return changed_bytes(rng, message)
    document = msgspec.msgpack.decode(message[1:])
    changed = changed_document(rng, document, (*TEXTS[:8], *NUMBERS[:18], None, [], {}, b"", [0, 1], ["head", 1, 2]))
    try:
        return message[:1] + msgspec.msgpack.encode(changed)
    except (OverflowError, UnicodeEncodeError):
        return message[:1] + rng.randbytes(20)


def call(rng: random.Random) -> tuple[type, bytes]:
    kind, message = rng.choice(_CALLED)
    return kind, _packed(rng, message)


def use_call(given: tuple[type, bytes]) -> None:
    wire.read(given[1], given[0])


def reply(rng: random.Random) -> bytes:
    return _packed(rng, rng.choice((_POLLED, _POLLED, _FAILED, _EMBEDDED)))


def use_reply(data: bytes) -> None:
    """Read it as the answer of each call. An error in it must be one that a client can get."""
    for kind in (wire.PollAnswer, list[bytes]):
        try:
            result: Any = wire.result_of(wire.read(data, wire.Reply), kind)
            if kind is wire.PollAnswer:
                for session in wire.poll_reply_of(result).sessions:
                    if session.error is not None:
                        describe_error(session.error)
            else:
                wire.vectors_of(result)
        except TlserveError as error:
            describe_error(error)


TARGETS = (
    *BODIES,
    Target(name="fields", make=fields, use=use_fields, refusals=(ClientError, HttpFault), share=200),
    Target(name="address", make=address, use=use_address, refusals=(SettingsError,), share=200),
    Target(name="fleet-call", make=call, use=use_call, refusals=(link.NodeLost,), share=400),
    Target(name="fleet-reply", make=reply, use=use_reply, refusals=(), share=300),
)
