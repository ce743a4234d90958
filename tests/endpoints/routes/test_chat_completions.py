"""POST /v1/chat/completions, whole answers: the request to the backend and its answer."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from tests.kit.scripted_backend import Script, ScriptedBackend
from tlserve.chat.messages import Role, Turn, conversation_of
from tlserve.chat.templates.template import DEFAULT_TEMPLATE, Template
from tlserve.generation import GenerationRequest
from tlserve.sampling_params import SamplingParams


@pytest.mark.spec("API-13")
async def test_the_hand_example_answers_bcd_with_every_field(open_api) -> None:
    async with open_api() as api:
        answer = await api.chat()
    assert answer.status == 200
    assert answer.headers.get("content-type") == "application/json"
    assert json.loads(answer.body) == {
        "id": "chatcmpl-id1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "succ",
        "system_fingerprint": "fp_scripted",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "bcd", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": 1,
            "completion_tokens": 3,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    ChatCompletion.model_validate_json(answer.body, strict=True)


async def test_the_fields_of_the_request_reach_the_backend(open_api) -> None:
    backend = ScriptedBackend()
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 5,
        "logprobs": True,
        "top_logprobs": 2,
    }
    async with open_api(backend, eos_ids=frozenset({0})) as api:
        await api.chat(None, ("X-TL-Priority", "-7"), ("X-Request-Id", "mine"), **fields, messages=messages("a"))
    assert backend.requests == [
        GenerationRequest(
            prompt=(97,),
            max_tokens=3,
            seed=5,
            sampling=SamplingParams(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1),
            stop_ids=frozenset({0}),
            logprobs=2,
            priority=-7,
            request_id="mine",
            tenant="address ",
            conversation=conversation_of([Turn(role=Role.USER, text="a")]),
        )
    ]


def messages(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


async def test_a_model_can_have_its_own_sampling_and_the_request_wins(open_api) -> None:
    backend = ScriptedBackend()
    async with open_api(backend, default_sampling=SamplingParams(temperature=0.3, top_k=9)) as api:
        await api.chat(temperature=None)
        await api.chat(temperature=1)
    assert [request.sampling for request in backend.requests] == [
        SamplingParams(temperature=0.3, top_k=9),
        SamplingParams(temperature=1, top_k=9),
    ]


@pytest.mark.spec("API-14")
async def test_usage_counts_the_rendered_template(open_api) -> None:
    async with open_api(template=Template.parse(DEFAULT_TEMPLATE)) as api:
        usage = json.loads((await api.chat("hi")).body)["usage"]
    assert usage["prompt_tokens"] == len("<|user|>\nhi\n<|assistant|>\n")


@pytest.mark.spec("API-13")
async def test_cached_tokens_are_part_of_the_usage(open_api) -> None:
    async with open_api(ScriptedBackend(Script(cached_tokens=1))) as api:
        usage = json.loads((await api.chat()).body)["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 1}


# --- how an answer ends --------------------------------------------------------------------------------------


@pytest.mark.spec("API-14", "API-15")
@pytest.mark.parametrize(
    ("fields", "content", "finish", "tokens"),
    [
        ({"max_tokens": 1}, "b", "length", 1),
        ({"max_tokens": 30}, "bcdefghijkl", "stop", 12),  # m is an end-of-text id here
        ({"max_tokens": 15, "ignore_eos": True}, "bcdefghijklmnop", "length", 15),
        ({"max_tokens": 10, "stop": ["de"]}, "bc", "stop", 4),
        ({"max_tokens": 4, "stop": ["de"]}, "bc", "stop", 4),  # complete with the last token that is allowed
        ({"max_tokens": 3, "stop": ["de"]}, "bcd", "length", 3),  # held back, and released at the end
        ({"max_tokens": 9, "stop": ["zz", "fg", "g"]}, "bcde", "stop", 6),
    ],
)
@pytest.mark.parametrize("batch_tokens", [1, 2, 50])
async def test_an_answer_ends_for_the_reason_it_gives_however_its_tokens_are_batched(
    open_api, fields: dict[str, Any], content: str, finish: str, tokens: int, batch_tokens: int
) -> None:
    backend = ScriptedBackend(Script(batch_tokens=batch_tokens))
    async with open_api(backend, eos_ids=frozenset({ord("m")})) as api:
        document = json.loads((await api.chat(**fields)).body)
    choice = document["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (content, finish)
    assert document["usage"]["completion_tokens"] == tokens


@pytest.mark.spec("API-16")
async def test_a_stop_string_leaves_the_backend_before_its_last_token(open_api) -> None:
    backend = ScriptedBackend()
    async with open_api(backend) as api:
        await api.chat(stop=["de"], max_tokens=10)
    assert (backend.counts.aborted, backend.counts.finished, backend.counts.open) == (1, 0, 0)


@pytest.mark.spec("CASE-31", "API-106")
async def test_without_a_limit_an_answer_takes_what_fits_the_context(open_api) -> None:
    backend = ScriptedBackend()
    async with open_api(backend) as api:
        await api.chat("abcd", max_tokens=None)
    assert backend.requests[0].max_tokens == 64 - 4


# --- log-probabilities ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-18")
async def test_logprobs_carry_the_raw_bytes_of_tokens_that_are_parts_of_characters(open_api) -> None:
    backend = ScriptedBackend(Script(tokens=tuple("é!".encode())))
    async with open_api(backend) as api:
        answer = await api.chat(logprobs=True, top_logprobs=2)
    choice = json.loads(answer.body)["choices"][0]
    content = choice["logprobs"]["content"]
    assert choice["message"]["content"] == "é!"
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA9], [0x21]]
    assert [entry["token"] for entry in content] == ["�", "�", "!"]
    assert [len(entry["top_logprobs"]) for entry in content] == [2, 2, 2]
    assert content[2]["top_logprobs"][0] == {"token": "!", "logprob": -0.25, "bytes": [0x21]}
    ChatCompletion.model_validate_json(answer.body, strict=True)


@pytest.mark.spec("API-18")
async def test_streamed_logprobs_are_those_of_the_whole_answer(open_api) -> None:
    fields = {"logprobs": True, "top_logprobs": 1, "max_tokens": 6, "stop": ["fx", "zz"]}
    async with open_api() as api:
        whole = json.loads((await api.chat(**fields)).body)["choices"][0]["logprobs"]["content"]
        streamed = (await api.chat(**fields, stream=True)).body
    chunks = [json.loads(line[6:]) for line in streamed.split(b"\n\n")[:-2]]
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for part in parts if part for entry in part["content"]] == whole
    assert len(whole) == 6


async def test_logprobs_that_were_not_requested_are_not_sent(open_api) -> None:
    async with open_api() as api:
        document = json.loads((await api.chat(logprobs=False)).body)
    assert document["choices"][0]["logprobs"] is None


# --- seeds ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-19")
async def test_a_request_without_a_seed_gets_one_and_can_ask_for_it(open_api) -> None:
    backend = ScriptedBackend()
    async with open_api(backend) as api:
        silent = await api.chat()
        telling = await api.chat("a", ("X-TL-Return-Seed", "1"))
        streamed = await api.chat("a", ("X-TL-Return-Seed", "1"), seed=3, stream=True)
    assert "x-tl-seed" not in silent.headers
    assert (telling.headers.get("x-tl-seed"), streamed.headers.get("x-tl-seed")) == ("77", "3")
    assert [request.seed for request in backend.requests] == [77, 77, 3]


@pytest.mark.spec("API-103")
async def test_every_64_bit_seed_is_a_seed_of_its_own(open_api) -> None:
    backend = ScriptedBackend()
    async with open_api(backend) as api:
        for seed in (-1, -(2**63), 2**63 - 1, 0):
            await api.chat(seed=seed)
    assert [request.seed for request in backend.requests] == [2**64 - 1, 2**63, 2**63 - 1, 0]


# --- ignored fields ------------------------------------------------------------------------------------------


@pytest.mark.spec("API-5", "CASE-47")
@pytest.mark.parametrize("stream", [False, True])
async def test_unknown_fields_are_named_in_a_header(open_api, stream: bool) -> None:
    async with open_api() as api:
        answer = await api.chat(stream=stream, **{"zebra": 1, "new\r\nline": 2, "ünder": 3})
    assert answer.status == 200
    assert answer.headers.get("x-tl-ignored") == "zebra, new%0D%0Aline, %C3%BCnder"


async def test_an_answer_to_known_fields_has_no_such_header(open_api) -> None:
    async with open_api() as api:
        assert "x-tl-ignored" not in (await api.chat(user="me")).headers


@pytest.mark.spec("API-6", "CASE-47")
async def test_a_strict_request_is_refused_for_an_unknown_field(open_api) -> None:
    async with open_api() as api:
        answer = await api.chat("a", ("X-TL-Strict", "1"), zebra=1)
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["param"] == "zebra"


# --- large bodies --------------------------------------------------------------------------------------------


async def test_a_large_prompt_is_read_in_a_thread_with_the_same_answer(open_api) -> None:
    async with open_api() as api:
        answer = await api.chat("a" * 20_000)
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert "20000" in error["message"]
    assert "64" in error["message"]
