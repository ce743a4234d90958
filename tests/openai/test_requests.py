"""Bodies become typed requests, or errors that name their field."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlserve.api.chat_request import BodyRules, ChatRequest
from tlserve.api.fields import Table
from tlserve.api.inputs import EmbeddingsRequest, Input
from tlserve.chat.messages import Role, Turn
from tlserve.errors import ClientError, Refusal
from tlserve.openai import field_tables
from tlserve.openai.messages import read_turns
from tlserve.openai.requests import (
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    parse_chat,
    parse_completion,
    parse_detokenize,
    parse_embeddings,
    parse_tokenize,
)
from tlserve.sampling_params import SamplingParams

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION = {"model": "m", "prompt": "x"}
EMBEDDINGS = {"model": "m", "input": "x"}


def chat(**fields: Any) -> ChatRequest:
    return parse_chat(json.dumps({**CHAT, **fields}).encode())


def completion(**fields: Any) -> CompletionRequest:
    return parse_completion(json.dumps({**COMPLETION, **fields}).encode())


def embeddings(**fields: Any) -> EmbeddingsRequest:
    return parse_embeddings(json.dumps({**EMBEDDINGS, **fields}).encode())


PARSERS = [parse_chat, parse_completion, parse_embeddings, parse_tokenize, parse_detokenize]


def turns(*messages: dict[str, Any]) -> tuple[Turn, ...]:
    return chat(messages=list(messages)).messages


# --- served fields ------------------------------------------------------------------------------------------


def test_every_served_chat_field_arrives() -> None:
    request = chat(
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=-5,
        stop=["a", "b"],
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=3,
        ignore_eos=True,
        n=2,
        min_tokens=3,
        stop_token_ids=[5, 6],
        include_stop_str_in_output=True,
        return_token_ids=True,
        cache_salt="mine",
        timeout=1.5,
    )
    options = request.options
    assert (request.model, request.messages) == ("m", (Turn(Role.USER, "x"),))
    assert options.sampling_over(SamplingParams()) == SamplingParams(temperature=0.5, top_p=0.9, top_k=40, min_p=0.1)
    assert (options.max_tokens, options.seed, options.stop) == (7, -5, ("a", "b"))
    assert (options.stream, options.include_usage, options.logprobs, options.ignore_eos) == (True, True, 3, True)
    assert (options.n, options.min_tokens, options.stop_token_ids, options.include_stop) == (2, 3, (5, 6), True)
    assert (options.return_token_ids, options.cache_salt, options.timeout_s) == (True, "mine", 1.5)
    assert request.ignored == ()


def test_sampling_without_a_value_is_the_models_own() -> None:
    defaults = SamplingParams(temperature=0.2, top_k=5)
    assert chat(temperature=0).options.sampling_over(defaults) == SamplingParams(temperature=0, top_k=5)
    assert chat().options.sampling_over(defaults) == defaults


@pytest.mark.spec("API-7")
def test_top_k_of_minus_one_means_all() -> None:
    assert chat(top_k=-1).options.sampling == {"top_k": 0}


@pytest.mark.spec("API-156")
@pytest.mark.parametrize("parse", [chat, completion])
@pytest.mark.parametrize("fields", [{"max_new_tokens": 7}, {"n_predict": 7}, {"max_tokens": 7, "n_predict": 7}])
def test_the_limit_has_the_names_of_other_servers(parse: Any, fields: dict[str, int]) -> None:
    options = parse(**fields).options
    assert (options.max_tokens, options.max_tokens_field) == (7, next(iter(fields)))


@pytest.mark.spec("API-156")
@pytest.mark.parametrize("fields", [{"max_tokens": 7, "n_predict": 8}, {"max_new_tokens": 8, "n_predict": 7}])
def test_two_names_of_the_limit_with_different_values_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ClientError, match="differ") as refused:
        chat(**fields)
    assert refused.value.param == "n_predict"


@pytest.mark.spec("API-61")
def test_penalties_and_effective_biases_arrive() -> None:
    asked = {"frequency_penalty": -0.5, "presence_penalty": 2, "repetition_penalty": 1.25}
    request = chat(**asked, logit_bias={"10": 1, "9": -100, "0": 100, "3": 0})
    assert request.options.sampling == {**asked, "logit_bias": ((0, 100.0), (9, -100.0), (10, 1.0))}


@pytest.mark.spec("API-126")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"repeat_penalty": 1.25}, 1.25),
        ({"repeat_penalty": 0}, 1),
        ({"repeat_penalty": 1}, 1),
        ({"repeat_penalty": 0, "repetition_penalty": 1}, 1),
        ({"repeat_penalty": 2, "repetition_penalty": 2.0}, 2),
        ({"repeat_penalty": None, "repetition_penalty": 2}, 2),
    ],
)
def test_the_repetition_penalty_has_two_names(given: dict[str, Any], expected: float) -> None:
    assert chat(**given).options.sampling == {"repetition_penalty": expected}


@pytest.mark.spec("API-126")
@pytest.mark.parametrize("given", [{"repeat_penalty": 0.001}, {"repeat_penalty": 2, "repetition_penalty": 1}])
def test_two_different_penalties_and_one_near_zero_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ClientError) as refused:
        chat(**given)
    assert (refused.value.param, isinstance(refused.value, Refusal)) == ("repeat_penalty", False)


@pytest.mark.spec("API-62")
@pytest.mark.parametrize("name", ["", "-1", "05", "1.0", "1e3", "٣", "+5", " 5", "5\n", "<|im_end|>", "9" * 11])
def test_a_bias_whose_key_is_not_a_decimal_id_is_refused(name: str) -> None:
    with pytest.raises(ClientError) as refused:
        chat(logit_bias={name: 1})
    assert refused.value.param == "logit_bias"


@pytest.mark.spec("API-68")
@pytest.mark.parametrize(
    ("given", "usage", "continuous"),
    [
        ({}, False, False),
        ({"include_usage": True}, True, False),
        ({"continuous_usage_stats": True}, False, True),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
        ({"include_usage": None, "continuous_usage_stats": None}, False, False),
    ],
)
def test_usage_can_come_at_the_end_and_on_every_chunk(given: dict[str, Any], usage: bool, continuous: bool) -> None:
    options = chat(stream=True, stream_options=given).options
    assert (options.include_usage, options.continuous_usage) == (usage, continuous)


@pytest.mark.parametrize(("given", "expected"), [(0, 0), (20, 20), (None, None)])
def test_completions_request_logprobs_by_a_number(given: Any, expected: Any) -> None:
    assert completion(logprobs=given).options.logprobs == expected


@pytest.mark.parametrize("given", [True, -1, 21, "5", 1.5])
def test_a_wrong_number_of_logprobs_of_a_completion_is_refused(given: Any) -> None:
    with pytest.raises(ClientError) as refused:
        completion(logprobs=given)
    assert (refused.value.param, isinstance(refused.value, Refusal)) == ("logprobs", False)


@pytest.mark.spec("API-66")
def test_prompt_logprobs_do_not_go_with_a_stream() -> None:
    assert completion(prompt_logprobs=0).options.prompt_logprobs == 0
    for parse in (chat, completion):
        with pytest.raises(ClientError) as refused:
            parse(prompt_logprobs=0, stream=True)
        assert refused.value.param == "prompt_logprobs"


@pytest.mark.spec("API-60")
@pytest.mark.parametrize(("n", "best_of", "served"), [(1, 1, True), (3, 3, True), (1, 2, False), (2, 1, None)])
def test_best_of_above_n_is_422_and_below_n_400(n: int, best_of: int, served: Any) -> None:
    if served:
        assert chat(n=n, best_of=best_of).options.n == n
        return
    with pytest.raises(ClientError) as refused:
        chat(n=n, best_of=best_of)
    assert (refused.value.param, isinstance(refused.value, Refusal)) == ("best_of", served is False)


@pytest.mark.spec("CASE-15", "API-7")
def test_the_newer_limit_wins_over_the_older() -> None:
    options = chat(max_tokens=9, max_completion_tokens=3).options
    assert (options.max_tokens, options.max_tokens_field) == (3, "max_completion_tokens")


def test_a_stop_is_a_string_or_a_list_and_an_empty_list_is_none() -> None:
    assert chat(stop="a").options.stop == ("a",)
    assert chat(stop=[]).options.stop == ()


@pytest.mark.parametrize("fields", [{}, {"logprobs": False}, {"logprobs": False, "top_logprobs": 0}])
def test_no_logprobs_are_requested_by_default(fields: dict[str, Any]) -> None:
    assert chat(**fields).options.logprobs is None


def contents(inputs: tuple[Input, ...]) -> list[Any]:
    return [item.content for item in inputs]


INPUTS = [
    ("x", ["x"], ["@"]),
    (["x"], ["x"], ["@[0]"]),
    ([1, 2], [(1, 2)], ["@"]),
    (["a", "b"], ["a", "b"], ["@[0]", "@[1]"]),
    ([[1], [2, 3]], [(1,), (2, 3)], ["@[0]", "@[1]"]),
    (list(range(3000)), [tuple(range(3000))], ["@"]),
]


@pytest.mark.spec("API-11")
@pytest.mark.parametrize(("given", "expected", "places"), INPUTS)
def test_completions_and_embeddings_accept_texts_and_ids_one_or_many(given: Any, expected: Any, places: Any) -> None:
    for field, inputs in (("prompt", completion(prompt=given).prompts), ("input", embeddings(input=given).inputs)):
        assert contents(inputs) == expected
        assert [item.place for item in inputs] == [place.replace("@", field) for place in places]


def test_a_completion_can_echo_its_prompt() -> None:
    assert completion(echo=True).echo
    assert not completion().echo


def test_embeddings_accept_their_options() -> None:
    request = embeddings(input=["a", "b"], encoding_format="base64", dimensions=4)
    assert (request.as_base64, request.dimensions) == (True, 4)
    assert (embeddings().as_base64, embeddings().dimensions) == (False, None)


def test_tokenize_accepts_text_and_adds_special_tokens_by_default() -> None:
    assert parse_tokenize(b'{"model":"m","text":""}') == TokenizeRequest(model="m", text="")
    request = parse_tokenize(b'{"model":"m","text":"a","add_special_tokens":false}')
    assert request == TokenizeRequest(model="m", text="a", add_special_tokens=False)


@pytest.mark.spec("API-161")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "text"),
        ({"text": None}, "text"),
        ({"text": "x", "prompt": "x"}, "prompt"),
        ({"text": "x", "messages": CHAT["messages"]}, "messages"),
        ({"content": "x", "add_special": True, "add_special_tokens": False}, "add_special"),
        ({"content": "x", "with_pieces": True}, "with_pieces"),
    ],
)
def test_tokenize_refuses_no_input_two_inputs_and_two_answers(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ClientError) as refused:
        parse_tokenize(json.dumps(fields).encode())
    assert refused.value.param == param


# --- messages ------------------------------------------------------------------------------------------------


@pytest.mark.spec("CASE-20", "API-9")
def test_text_parts_joined_in_order_give_the_same_turn_as_a_string() -> None:
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hi"}]
    for role in ("system", "user", "assistant"):
        assert turns({"role": role, "content": parts}) == turns({"role": role, "content": "Say hi"})


@pytest.mark.spec("API-10")
def test_a_developer_is_a_system_turn() -> None:
    assert turns({"role": "developer", "content": "x"}) == (Turn(Role.SYSTEM, "x"),)


def test_a_tool_turn_keeps_its_call_id_and_name() -> None:
    turn = {"role": "tool", "content": [{"type": "text", "text": "42"}], "tool_call_id": "c1", "name": "f"}
    assert turns(turn) == (Turn(Role.TOOL, "42", name="f", tool_call_id="c1"),)


@pytest.mark.spec("API-10")
def test_the_fields_of_a_returned_assistant_turn_are_accepted() -> None:
    echoed: dict[str, Any] = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert turns(echoed) == (Turn(Role.ASSISTANT, "x"),)


PLAIN = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant"]), "content": st.text()},
    optional={"name": st.none() | st.text()},
)


@pytest.mark.spec("API-119")
@given(st.lists(PLAIN, min_size=1, max_size=5))
def test_plain_messages_in_one_pass_give_the_turns_of_the_tables(messages: list[dict[str, Any]]) -> None:
    members = msgspec.json.decode(json.dumps(messages), type=list[dict[str, msgspec.Raw]])
    assert (turns(*messages), ()) == read_turns(members)


@pytest.mark.parametrize(
    "other", [{"role": "tool", "content": "x", "tool_call_id": "c"}, {"role": "user", "content": "x", "mood": 1}]
)
def test_one_message_that_is_not_plain_changes_nothing_for_the_others(other: dict[str, Any]) -> None:
    plain = {"role": "user", "content": "x"}
    request = chat(messages=[plain, other, plain])
    assert request.messages[0] == request.messages[2] == turns(plain)[0]
    assert request.ignored == (("messages[].mood",) if "mood" in other else ())


MESSAGE_FAULTS = [
    (400, "messages", []),
    (400, "messages", "hi"),
    (400, "messages", [3]),
    (400, "messages[0].role", [{}]),
    (400, "messages[0].role", [{"role": None, "content": "x"}]),
    (400, "messages[0].role", [{"role": "wizard", "content": "x"}]),
    (400, "messages[0].role", [{"role": 5, "content": "x"}]),
    (400, "messages[0].content", [{"role": "user"}]),
    (400, "messages[0].content", [{"role": "user", "content": None}]),
    (400, "messages[0].content", [{"role": "user", "content": 5}]),
    (400, "messages[0].content", [{"role": "user", "content": []}]),
    (400, "messages[0].content", [{"role": "user", "content": [{"type": "mystery"}]}]),
    (400, "messages[0].content", [{"role": "user", "content": [{"text": "x"}]}]),
    (400, "messages[0].content", [{"role": "user", "content": [{"type": "text"}]}]),
    (400, "messages[0].content", [{"role": "user", "content": ["x"]}]),
    (422, "messages[0].content", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    (422, "messages[0].content", [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]),
    (400, "messages[0].content", [{"role": "assistant", "content": None}]),
    (400, "messages[0].tool_calls", [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]),
    (
        400,
        "messages[0].tool_calls",
        [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}],
    ),
    (400, "messages[0].tool_calls", [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": ""}}]}]),
    (400, "messages[0].content", [{"role": "assistant", "content": None, "tool_calls": []}]),
    (422, "messages[0].function_call", [{"role": "assistant", "content": None, "function_call": {}}]),
    (400, "messages[0].tool_call_id", [{"role": "tool", "content": "x"}]),
    (422, "messages[0].role", [{"role": "function", "name": "f", "content": "x"}]),
    (400, "messages[1].role", [{"role": "user", "content": "x"}, {"role": "User", "content": "x"}]),
]


@pytest.mark.spec("CASE-20", "API-9", "API-10")
@pytest.mark.parametrize(("status", "param", "messages"), MESSAGE_FAULTS)
def test_a_message_that_is_not_served_is_refused_by_its_place(status: int, param: str, messages: Any) -> None:
    with pytest.raises(ClientError) as refused:
        chat(messages=messages)
    assert (refused.value.param, isinstance(refused.value, Refusal)) == (param, status == 422)


# --- values out of range, nulls, no-ops --------------------------------------------------------------------------------

WRONG: dict[str, list[Any]] = {
    "model": ["", 5, []],
    "temperature": [-1, 2.1, "1", True, [], {}],
    "top_p": [0, -0.1, 1.1, "1", False],
    "top_k": [-2, 1.5, "1", True, 2**31],
    "min_p": [-0.1, 1.1, True],
    "max_tokens": [0, -1, "5", True, 1.5, [5]],
    "max_completion_tokens": [0, -1, "5", True],
    "max_new_tokens": [0, "5"],
    "n_predict": [0, -1, 1.5],
    "skip_special_tokens": [1, "false"],
    "return_tokens_as_token_ids": [1, "true"],
    "json_schema": [5, "{", []],
    "seed": [2**63, -(2**63) - 1, 1.5, "1", True],
    "stop": ["", [""], ["a"] * 5, 5, [5], {"a": 1}],
    "stream": ["true", 1, 0],
    "stream_options": ["x", [], {"include_usage": True}],
    "logprobs": [1, "true"],
    "top_logprobs": [21, -1, True, 3],
    "ignore_eos": [1],
    "n": [0, -1, "1", True, 1.0, 129],
    "best_of": [0, "1", 129],
    "logit_bias": [
        [],
        {"1": "x"},
        {"1": 101},
        {"1": -101},
        {"1": None},
        {"x": 1},
        dict.fromkeys(map(str, range(1025)), 1),
    ],
    "frequency_penalty": [-2.1, "0"],
    "presence_penalty": [2.1, True],
    "repetition_penalty": [0, -1, 101, "1", True],
    "repeat_penalty": [-1, 101, "1", 0.001],
    "min_tokens": [-1, 1.5, "1", True],
    "stop_token_ids": [5, "5", ["5"], [-1], [1.5], [True], [1] * 1025],
    "include_stop_str_in_output": [1, "true"],
    "prompt_logprobs": [-1, 21, True, "0"],
    "return_token_ids": [1],
    "cache_salt": ["", 5, "x" * 257],
    "timeout": [0, -1, "1", True],
    "tools": [{}, [1]],
    "tool_choice": [1],
    "response_format": ["json", {}, {"type": "xml"}, {"type": "json_schema"}],
    "user": [5],
    "metadata": ["x"],
}


@pytest.mark.spec("API-2", "API-8", "CASE-48", "API-101")
@pytest.mark.parametrize(("field", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_is_refused_by_field_with_the_right_form(field: str, value: Any) -> None:
    with pytest.raises(ClientError) as refused:
        chat(**{field: value})
    assert not isinstance(refused.value, Refusal)
    assert refused.value.param == field
    assert field in refused.value.message
    assert "send " in refused.value.message or "leave it out" in refused.value.message


@pytest.mark.spec("API-2", "CASE-48")
@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 5000, "1" + "0" * 400 + ".5"])
@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "max_completion_tokens", "top_k", "seed", "n", "min_tokens", "timeout"]
)
def test_a_number_beyond_every_range_is_refused_by_field(field: str, number: str) -> None:
    body = json.dumps(CHAT)[:-1] + f', "{field}": {number}}}'
    if field == "max_completion_tokens" and number == "9" * 5000:
        body = body.replace("9" * 5000, "-" + "9" * 5000)
    with pytest.raises(ClientError) as refused:
        parse_chat(body.encode())
    assert refused.value.param == field


OPTIONAL = [*(name for name in WRONG if name != "model"), "functions", "audio", "store", "reasoning_effort"]


@pytest.mark.spec("CASE-15", "API-3")
@pytest.mark.parametrize("field", OPTIONAL)
def test_null_is_the_default_of_every_optional_field(field: str) -> None:
    assert chat(**{field: None}) == chat()


BASES: dict[str, tuple[Any, Table, dict[str, Any]]] = {
    "chat": (parse_chat, field_tables.CHAT, CHAT),
    "completion": (parse_completion, field_tables.COMPLETION, COMPLETION),
    "embeddings": (parse_embeddings, field_tables.EMBEDDINGS, EMBEDDINGS),
    "tokenize": (parse_tokenize, field_tables.TOKENIZE, {"model": "m", "text": "x"}),
}


@pytest.mark.parametrize("name", BASES)
def test_null_is_the_default_of_every_optional_field_of_every_table(name: str) -> None:
    parse, table, base = BASES[name]
    optional = [field for field, declared in table.items() if not declared.required and field not in ("model", "text")]
    assert optional
    for field in optional:
        assert parse(json.dumps({**base, field: None}).encode()) == parse(json.dumps(base).encode()), field


@pytest.mark.spec("API-3")
@pytest.mark.parametrize("field", ["messages"])
def test_null_for_a_required_field_is_a_missing_field(field: str) -> None:
    with pytest.raises(ClientError, match="missing") as refused:
        chat(**{field: None})
    assert refused.value.param == field


NOOPS: dict[str, list[Any]] = {
    "n": [1],
    "best_of": [1],
    "echo": [False],
    "tools": [[]],
    "functions": [[]],
    "tool_choice": ["auto"],
    "function_call": ["none", "auto"],
    "response_format": [{"type": "text"}],
    "min_tokens": [0],
    "stop_token_ids": [[]],
    "include_stop_str_in_output": [False],
    "return_token_ids": [False],
    "skip_special_tokens": [True],
    "return_tokens_as_token_ids": [False],
    "json_schema": [""],
    "parallel_tool_calls": [True, False],
    "chat_template_kwargs": [{}],
    "add_generation_prompt": [True],
    "continue_final_message": [False],
    "modalities": [["text"]],
    "user": ["someone"],
    "metadata": [{"a": "b"}],
    "store": [True, False],
    "service_tier": ["auto"],
}


@pytest.mark.spec("API-4")
@pytest.mark.parametrize(("field", "value"), [(name, value) for name, values in NOOPS.items() for value in values])
def test_a_value_without_effect_is_served(field: str, value: Any) -> None:
    assert chat(**{field: value}) == chat()


LATER = {
    "best_of": 2,
    "echo": True,
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "modalities": ["audio"],
    "audio": {"voice": "x"},
    "prediction": {"type": "content"},
}


@pytest.mark.spec("API-4")
@pytest.mark.parametrize("field", LATER)
def test_a_public_field_that_is_not_served_is_422_by_name(field: str) -> None:
    with pytest.raises(Refusal, match=field) as refused:
        chat(**{field: LATER[field]})
    assert (refused.value.param, refused.value.code) == (field, "unsupported_parameter")


WRONG_INPUTS = [
    ("", "@"),
    ([], "@"),
    ([[]], "@[0]"),
    ([1, "a"], "@"),
    ([1, [1]], "@"),
    (5, "@"),
    ([-1], "@"),
    ([[1], [-1]], "@"),
    ([True], "@"),
    ([[["a"]]], "@"),
    (["a", ""], "@[1]"),
    ([[1], []], "@[1]"),
    (["a"] * 2049, "@"),
    ([[1]] * 2049, "@"),
]


@pytest.mark.spec("API-104")
@pytest.mark.parametrize(("given", "param"), WRONG_INPUTS)
def test_an_unreadable_input_is_refused_by_place(given: Any, param: str) -> None:
    for field, parse in (("prompt", completion), ("input", embeddings)):
        with pytest.raises(ClientError) as refused:
            parse(**{field: given})
        assert not isinstance(refused.value, Refusal)
        assert refused.value.param == param.replace("@", field)


@pytest.mark.parametrize("fields", [{"suffix": "x"}, {"best_of": 2}, {"use_beam_search": True}])
def test_a_field_that_completions_do_not_serve_is_422_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        completion(**fields)
    assert [refused.value.param] == list(fields)


@pytest.mark.parametrize(("field", "value"), [("encoding_format", "x"), ("encoding_format", 1), ("dimensions", 0)])
def test_a_wrong_option_of_embeddings_is_refused_by_field(field: str, value: Any) -> None:
    with pytest.raises(ClientError) as refused:
        embeddings(**{field: value})
    assert (refused.value.param, isinstance(refused.value, Refusal)) == (field, False)


@pytest.mark.parametrize(("tokens", "param"), [(None, "tokens"), ("a", "tokens"), ([-1], "tokens"), ([True], "tokens")])
def test_detokenize_accepts_only_token_ids(tokens: Any, param: str) -> None:
    assert parse_detokenize(b'{"model":"m","tokens":[]}') == DetokenizeRequest(model="m", tokens=())
    with pytest.raises(ClientError) as refused:
        parse_detokenize(json.dumps({"model": "m", "tokens": tokens}).encode())
    assert refused.value.param == param


# --- unknown fields ------------------------------------------------------------------------------------------


@pytest.mark.spec("API-5")
def test_unknown_fields_are_ignored_and_named_with_their_place() -> None:
    request = chat(
        temprature=1,
        stream=True,
        stream_options={"include_usge": True},
        messages=[{"role": "user", "content": "x", "mood": 1}, {"role": "user", "content": "y", "mood": 2}],
    )
    assert request.ignored == ("temprature", "stream_options.include_usge", "messages[].mood")


def test_unknown_fields_can_have_any_value() -> None:
    assert chat(zz={"a": [None, 1e300]}, zy=None).ignored == ("zz", "zy")


@pytest.mark.spec("API-6")
@pytest.mark.parametrize("parse", PARSERS)
def test_a_strict_request_refuses_unknown_fields(parse: Any) -> None:
    given = {**CHAT, "prompt": "x", "input": "x", "text": "x", "tokens": [1], "zz": 1}
    if parse is parse_tokenize:
        given = {"text": "x", "zz": 1}
    body = json.dumps(given).encode()
    assert "zz" in parse(body).ignored
    with pytest.raises(ClientError, match="strict"):
        parse(body, BodyRules(strict=True))


# --- random fields ------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 200) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["abtype", "role"]), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([*WRONG, *LATER, "messages", "prompt", "input", "text", "dimensions", "encoding_format", "zz"])


@pytest.mark.spec("API-2")
@pytest.mark.parametrize("parse", PARSERS)
@given(fields=st.dictionaries(NAMES, VALUES, max_size=4))
def test_any_fields_give_a_typed_request_or_a_client_error_with_a_field(parse: Any, fields: dict[str, Any]) -> None:
    body = json.dumps({**CHAT, "prompt": "x", "input": "x", "text": "x", "tokens": [1], **fields}).encode()
    try:
        parse(body)
        named: str | None = "the request"
    except ClientError as error:
        named = error.param
    assert named or b"Infinity" in body


@pytest.mark.spec("API-152")
@pytest.mark.parametrize(
    ("members", "text", "reasoning"),
    [
        ({"content": None, "refusal": "I cannot."}, "I cannot.", None),
        ({"refusal": "I cannot."}, "I cannot.", None),
        ({"content": "Yes.", "refusal": None}, "Yes.", None),
        ({"content": None, "reasoning_content": "Hm."}, "", "Hm."),
        ({"content": None, "reasoning": "Hm."}, "", "Hm."),
    ],
)
def test_an_earlier_answer_without_content_is_its_refusal_or_its_reasoning(
    members: dict[str, Any], text: str, reasoning: str | None
) -> None:
    request = chat(messages=[{"role": "user", "content": "x"}, {"role": "assistant", **members}])
    assert (request.messages[1].text, request.messages[1].reasoning) == (text, reasoning)


def test_an_earlier_answer_with_nothing_in_it_is_refused() -> None:
    with pytest.raises(ClientError, match=r"messages\[0\]\.content is missing"):
        chat(messages=[{"role": "assistant", "content": None}])


@pytest.mark.parametrize("field", ["parse_special", "add_special"])
def test_fields_of_a_text_are_checked_in_a_chat_to_be_tokenised(field: str) -> None:
    body = {"model": "succ", "messages": [{"role": "user", "content": "a"}], field: "x"}
    with pytest.raises(ClientError, match=field):
        parse_tokenize(json.dumps(body).encode())
