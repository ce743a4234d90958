"""Tools and reasoning over the API: an exact text from the backend, and the client's answer, whole and streamed."""

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.kit.scripted_backend import INFO, Script, ScriptedBackend
from tlserve.chat.dialects.json_calls import QWEN3
from tlserve.chat.dialects.llama3 import LLAMA3
from tlserve.chat.grammars.source import GrammarSource, parse_source
from tlserve.chat.templates.template import Template
from tlserve.generation import Grammar

NOW: dict[str, Any] = {
    "type": "function",
    "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
}
ADD_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD = {"type": "function", "function": {"name": "add", "parameters": ADD_SCHEMA}}
TWO_CALLS = (
    "<think>\nI need two.\n</think>\n\nLet me see.\n"
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "2"}}\n</tool_call>'
)
ONE_CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
CONTEXT = attrs.evolve(INFO, context_tokens=4096)
TEMPLATE = Template.parse(
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}{% for m in messages %}{{ m.role }}: "
    "{{ m.reasoning_content }}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}"
    "({{ c.function.arguments | tojson }}){% endfor %}{{ m.tool_call_id }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% if enable_thinking %}<think>{% endif %}{% endif %}"
)
SERVED: dict[str, Any] = {"dialect": QWEN3, "template": TEMPLATE, "eos_ids": frozenset({0})}


def saying(text: str) -> ScriptedBackend:
    """Return a backend that answers `text`, and then ends."""
    return ScriptedBackend(Script(tokens=(*text.encode(), 0)), CONTEXT)


async def ask(
    open_api: Callable[..., Any], text: str, *, served: Any = None, **fields: Any
) -> tuple[dict[str, Any], list[Any]]:
    """Return the whole answer, and the chunks of the same answer streamed."""
    fields = {"max_tokens": 1000, **fields}
    async with open_api(saying(text), **{**SERVED, **(served or {})}) as api:
        whole = await api.chat(**fields)
        streamed = await api.chat(stream=True, **fields)
    assert (whole.status, streamed.status) == (200, 200), whole.body
    events = [line.removeprefix("data: ") for line in streamed.body.decode().split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return json.loads(whole.body), [json.loads(event) for event in events]


def rebuilt(chunks: list[Any]) -> dict[str, Any]:
    """Return the answer that the official client's stream helper makes of the chunks."""
    state = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True))
    return json.loads(state.get_final_completion().to_json())


def without_ids(calls: list[Any]) -> list[Any]:
    """Return the calls for a comparison: their ids are random, and the client adds its own members."""
    return [function(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def source_of(grammar: Grammar | None) -> GrammarSource:
    assert grammar is not None
    return parse_source(grammar)


def function(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


# --- calls -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-49")
async def test_two_calls_come_with_reasoning_and_content_whole(open_api) -> None:
    whole, _ = await ask(open_api, TWO_CALLS, tools=[NOW, ADD])
    ChatCompletion.model_validate(whole)
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("Let me see.", "I need two.")
    assert without_ids(message["tool_calls"]) == [function("now", "{}"), function("add", '{"a": 1, "b": 2}')]


@pytest.mark.spec("CASE-12", "API-49")
async def test_each_call_of_a_stream_has_its_index_and_its_id_type_and_name_once(open_api) -> None:
    _, chunks = await ask(open_api, TWO_CALLS, tools=[NOW, ADD])
    pieces = [piece for chunk in chunks for piece in chunk["choices"][0]["delta"].get("tool_calls", [])]
    firsts = [piece for piece in pieces if "id" in piece]
    assert [(piece["index"], piece["type"], piece["function"]["name"]) for piece in firsts] == [
        (0, "function", "now"),
        (1, "function", "add"),
    ]
    assert all(set(piece) == {"index", "function"} for piece in pieces if piece not in firsts)
    assert len(pieces) > 6
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "tool_calls"]


@pytest.mark.spec("CASE-12", "API-49")
@pytest.mark.parametrize("text", [TWO_CALLS, ONE_CALL, "No.", "<think>a</think>b", ONE_CALL[:-20], "<tool_call>oops"])
async def test_the_clients_stream_helper_rebuilds_the_whole_answer(open_api, text: str) -> None:
    whole, chunks = await ask(open_api, text, tools=[NOW, ADD])
    message, again = whole["choices"][0]["message"], rebuilt(chunks)["choices"][0]["message"]
    assert (again["content"] or None) == (message["content"] or None)
    assert without_ids(again.get("tool_calls") or []) == without_ids(message.get("tool_calls", []))
    assert again.get("reasoning_content") == message.get("reasoning_content")
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


@pytest.mark.spec("API-121")
async def test_an_answer_of_calls_alone_has_null_content(open_api) -> None:
    whole, _ = await ask(open_api, ONE_CALL, tools=[NOW])
    assert whole["choices"][0]["message"]["content"] is None


@pytest.mark.spec("CASE-13", "API-49")
async def test_ids_of_calls_differ_between_turns_choices_and_requests(open_api) -> None:
    ids = set()
    for _ in range(2):
        whole, chunks = await ask(open_api, TWO_CALLS, tools=[NOW, ADD])
        ids |= {call["id"] for call in whole["choices"][0]["message"]["tool_calls"]}
        pieces = [piece for chunk in chunks for piece in chunk["choices"][0]["delta"].get("tool_calls", [])]
        ids |= {piece["id"] for piece in pieces if "id" in piece}
    assert len(ids) == 8


@pytest.mark.spec("CASE-6", "API-50")
@pytest.mark.parametrize(
    ("text", "fields", "reason"),
    [
        (ONE_CALL, {}, "tool_calls"),
        (ONE_CALL, {"max_tokens": 50}, "length"),
        ("No.", {}, "stop"),
        ("No. stop", {"stop": ["stop"]}, "stop"),
        (ONE_CALL[:-14], {}, "stop"),
    ],
)
async def test_the_reason_of_an_end_is_that_of_the_public_api(open_api, text: str, fields: Any, reason: str) -> None:
    whole, chunks = await ask(open_api, text, tools=[NOW], **fields)
    assert whole["choices"][0]["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == reason


@pytest.mark.spec("API-121")
async def test_without_parallel_calls_the_first_call_ends_the_answer_and_the_work(open_api) -> None:
    backend = saying(TWO_CALLS)
    async with open_api(backend, **SERVED) as api:
        answer = await api.chat(tools=[NOW, ADD], parallel_tool_calls=False, max_tokens=1000)
    (choice,) = json.loads(answer.body)["choices"]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["now"]
    assert choice["finish_reason"] == "tool_calls"
    assert backend.counts.aborted == 1


# --- tools that are empty, null or not called ---------------------------------------------------------------------------


@pytest.mark.spec("CASE-50", "API-120")
@pytest.mark.parametrize("tools", [None, [], [NOW]])
async def test_tool_choice_none_gives_no_calls_no_markup_and_shows_no_tools(open_api, tools: Any) -> None:
    whole, chunks = await ask(open_api, "So: " + ONE_CALL, tools=tools, tool_choice="none")
    (choice,) = whole["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("So:", "stop")
    assert "tool_calls" not in choice["message"]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "So:"
    backend = saying("x")
    async with open_api(backend, **SERVED) as api:
        await api.chat(tools=tools, tool_choice="none")
        await api.chat()
    assert backend.requests[0].prompt == backend.requests[1].prompt


@pytest.mark.spec("CASE-14", "API-48")
@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": None}, {"tool_choice": None}, {}])
async def test_without_tools_the_answer_is_its_text(open_api, fields: Any) -> None:
    whole, _ = await ask(open_api, ONE_CALL, **fields)
    assert whole["choices"][0]["message"]["content"] == ONE_CALL
    assert whole["choices"][0]["finish_reason"] == "stop"


# --- reasoning ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-52", "API-123")
async def test_reasoning_cut_by_the_limit_is_all_reasoning(open_api) -> None:
    whole, chunks = await ask(open_api, "I wonder why", enable_thinking=True, max_tokens=8)
    (choice,) = whole["choices"]
    assert choice["message"] == {"role": "assistant", "content": "", "refusal": None, "reasoning_content": "I wonder"}
    assert choice["finish_reason"] == "length"
    assert "".join(chunk["choices"][0]["delta"].get("reasoning_content", "") for chunk in chunks) == "I wonder"
    assert not any(chunk["choices"][0]["delta"].get("content") for chunk in chunks)


@pytest.mark.spec("API-52")
async def test_reasoning_is_sent_under_a_second_name_with_that_setting(open_api) -> None:
    names = {"reasoning_names": ("reasoning_content", "reasoning")}
    whole, chunks = await ask(open_api, "<think>hm</think>x", served=names)
    message = whole["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == "hm"
    assert "".join(chunk["choices"][0]["delta"].get("reasoning", "") for chunk in chunks) == "hm"


# --- the prompt of the model ------------------------------------------------------------------------------------------


@pytest.mark.spec("API-51")
async def test_tools_calls_results_and_reasoning_reach_the_template(open_api) -> None:
    backend = saying("x")
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "x", "reasoning_content": "not mine"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm "},
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}],
        },
    ]
    async with open_api(backend, **SERVED) as api:
        answer = await api.chat(messages=messages, tools=[NOW, ADD], max_tokens=5)
        count = await api.post(
            "/v1/chat/completions/input_tokens", {"model": "succ", "messages": messages, "tools": [NOW, ADD]}
        )
    assert answer.status == 200
    prompt = bytes(backend.requests[0].prompt).decode()
    assert prompt == 'now;add;user: x\nassistant: hm add({"a": 1})\ntool: 42c1\nassistant: '
    assert json.loads(count.body)["input_tokens"] == len(prompt)
    assert answer.headers.get("x-tl-ignored") == "messages[].reasoning_content"


async def test_deeply_nested_arguments_are_not_a_server_error(open_api) -> None:
    for depth in (150, 900, 5000):
        arguments = '{"a": ' * depth + "1" + "}" * depth
        call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}
        turns = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
        async with open_api(saying("x"), **SERVED) as api:
            answer = await api.chat(messages=turns, max_tokens=5)
        assert answer.status in (200, 400), depth


@pytest.mark.spec("API-124")
async def test_a_continued_message_and_no_generation_prompt_reach_the_template(open_api) -> None:
    backend = saying("x")
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "I am"}]
    async with open_api(backend, **SERVED) as api:
        await api.chat(messages=messages, continue_final_message=True, max_tokens=5)
        await api.chat(messages=messages, add_generation_prompt=False, max_tokens=5)
    prompts = [bytes(request.prompt).decode() for request in backend.requests]
    assert prompts == ["user: x\nassistant: I am", "user: x\nassistant: I am\n"]


@pytest.mark.spec("API-53", "API-125")
async def test_variables_that_the_template_does_not_read_are_reported_or_refused(open_api) -> None:
    fields = {"chat_template_kwargs": {"enable_thinking": True, "mood": "good"}, "max_tokens": 5}
    async with open_api(saying("x"), **SERVED) as api:
        loose = await api.chat(**fields)
        strict = await api.chat("a", ("X-TL-Strict", "1"), **fields)
    assert (loose.status, loose.headers.get("x-tl-ignored")) == (200, "chat_template_kwargs.mood")
    assert strict.status == 400


@pytest.mark.spec("API-48")
@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"tools": [NOW], "tool_choice": {"type": "custom"}}, 422, "tool_choice"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"reasoning_effort": "high"}, 422, "reasoning_effort"),
        ({"chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs"),
        ({"continue_final_message": True}, 400, "continue_final_message"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_impossible_request_is_refused_before_admission(
    open_api, fields: Any, status: int, param: str, stream: bool
) -> None:
    backend = saying("x")
    async with open_api(backend, **SERVED) as api:
        answer = await api.chat(stream=stream, **fields)
    assert (answer.status, json.loads(answer.body)["error"]["param"]) == (status, param)
    assert backend.requests == []


@pytest.mark.spec("API-54")
async def test_a_raw_completion_is_read_as_plain_text(open_api) -> None:
    async with open_api(saying(TWO_CALLS), **SERVED) as api:
        answer = await api.post("/v1/completions", {"model": "succ", "prompt": "a", "max_tokens": 1000})
    assert json.loads(answer.body)["choices"][0]["text"] == TWO_CALLS


@pytest.mark.spec("API-54")
async def test_calls_and_reasoning_can_have_log_probabilities(open_api) -> None:
    whole, chunks = await ask(open_api, TWO_CALLS, tools=[NOW, ADD], logprobs=True)
    entries = whole["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == TWO_CALLS
    streamed = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == entries


# --- capabilities -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-55")
async def test_a_model_lists_its_capabilities_or_the_reasons_against(open_api) -> None:
    async with open_api(**SERVED) as api:
        able = json.loads((await api.get("/v1/models/succ")).body)["capabilities"]
    async with open_api(generates=False) as api:
        vectors = json.loads((await api.get("/v1/models")).body)["data"][0]["capabilities"]
    assert list(able) == list(vectors) == ["descriptor_version", "backend", "workload", "modalities", "dialect"]
    assert (able["descriptor_version"], able["backend"]) == (1, "local")
    assert able["workload"]["causal_generation"] is able["workload"]["embedding"] is True
    assert (able["dialect"]["enable_thinking"], able["dialect"]["reasoning_effort"]) == (True, True)
    reasons = [
        able["dialect"]["reasoning_effort_levels"],
        able["workload"]["speech_to_text"],
        *able["modalities"].values(),
        vectors["workload"]["causal_generation"],
        *vectors["dialect"].values(),
    ]
    assert all(isinstance(reason, str) and len(reason.split()) > 3 for reason in reasons)


@pytest.mark.spec("API-55")
@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "input_audio", "input_audio": {}}]
)
async def test_a_feature_that_the_descriptor_denies_is_refused(open_api, part: Any) -> None:
    async with open_api() as api:
        answer = await api.chat([part])
    assert (answer.status, json.loads(answer.body)["error"]["param"]) == (422, "messages[0].content")


# --- forced calls and formats -----------------------------------------------------------------------------------------


NAMED_NOW = {"type": "function", "function": {"name": "now"}}


@pytest.mark.spec("CASE-6", "API-145")
@pytest.mark.parametrize(
    ("choice", "finish"),
    [("required", "tool_calls"), (NAMED_NOW, "stop"), ("auto", "tool_calls"), (None, "tool_calls")],
)
async def test_a_named_call_ends_with_stop_and_any_other_with_tool_calls(open_api, choice: Any, finish: str) -> None:
    whole, chunks = await ask(open_api, ONE_CALL, tools=[NOW, ADD], tool_choice=choice)
    assert [whole["choices"][0]["finish_reason"], chunks[-1]["choices"][0]["finish_reason"]] == [finish, finish]
    assert without_ids(whole["choices"][0]["message"]["tool_calls"]) == [function("now", "{}")]


@pytest.mark.spec("API-86")
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": [NOW], "tool_choice": "required"}, "tools"),
        ({"tools": [{**NOW, "function": {**NOW["function"], "strict": True}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "tools": [NOW]}, "response_format"),
        ({"regex": "a+"}, "regex"),
    ],
)
async def test_the_grammar_of_an_answer_goes_with_every_request_to_the_backend(
    open_api, fields: Any, field: str
) -> None:
    backend = saying("x")
    async with open_api(backend, **SERVED) as api:
        await api.chat(n=2, max_tokens=1000, **fields)
    grammars = [request.grammar for request in backend.requests]
    assert len(set(grammars)) == 1
    assert source_of(grammars[0]).field == field


@pytest.mark.spec("API-86", "API-146")
@pytest.mark.parametrize("fields", [{}, {"tools": [NOW]}, {"tools": [NOW], "tool_choice": "none"}, {"tools": []}])
async def test_a_free_answer_has_no_grammar(open_api, fields: Any) -> None:
    backend = saying("x")
    async with open_api(backend, **SERVED) as api:
        await api.chat(max_tokens=1000, **fields)
    assert backend.requests[0].grammar is None


@pytest.mark.spec("API-86")
async def test_reasoning_before_an_answer_with_a_format_is_free(open_api) -> None:
    backend = saying("x")
    async with open_api(backend, **SERVED) as api:
        for thinking in (True, False):
            await api.chat(max_tokens=1000, enable_thinking=thinking, choice=["yes"])
    rules = [source_of(request.grammar).rules.partition("\n")[0] for request in backend.requests]
    assert rules == ["start: reasoning content", 'start: (("<think>") reasoning)? content']


@pytest.mark.spec("API-86")
async def test_a_raw_completion_can_have_a_format_like_a_chat(open_api) -> None:
    backend = saying("x")
    async with open_api(backend, **SERVED) as api:
        body = {"model": "succ", "prompt": ["a", "b"], "structured_outputs": {"choice": ["yes"]}, "max_tokens": 9}
        assert (await api.post("/v1/completions", body)).status == 200
    assert [source_of(request.grammar).rules for request in backend.requests] == [
        "start:  content\ncontent: @answer"
    ] * 2


@pytest.mark.spec("CHAT-5")
@pytest.mark.parametrize("value", ["1e999", '"\\ud800"', "-1e999", "9" * 400])
async def test_a_strange_value_in_a_call_is_a_valid_answer(open_api, value) -> None:
    calc = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}
    served = {**SERVED, "dialect": LLAMA3}
    async with open_api(saying(f"[calc(x={value})]"), **served) as api:
        for stream in (False, True):
            answer = await api.chat(max_tokens=1000, tools=[calc], stream=stream)
            assert answer.status == 200
            assert b"Infinity" not in answer.body
            if not stream:
                message = json.loads(answer.body)["choices"][0]["message"]
                for call in message.get("tool_calls") or []:
                    json.loads(call["function"]["arguments"], parse_constant=pytest.fail)
                assert message.get("tool_calls") or message["content"]
        assert len(api.backend.requests) == 2
