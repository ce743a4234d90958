"""Several answers to one request: completions of a list of prompts, whole and streamed, side by side."""

import json
from typing import Any

import attrs
import pytest
import trio
from openai.types import Completion

from tests.kit.scripted_backend import INFO, QUEUE, Script, ScriptedBackend
from tlserve.errors import EngineFailed, NoCapacity, Overloaded
from tlserve.generation import GenerationRequest
from tlserve.http.client.connection import ResponseBroken

COMPLETIONS = "/v1/completions"


def body(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "succ", "prompt": prompt, "max_tokens": 3, "temperature": 0, **fields}


def chunks_of(answer: Any) -> list[dict[str, Any]]:
    *events, done, end = answer.body.decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def choices_of(chunks: list[dict[str, Any]]) -> list[tuple[int, str, str | None]]:
    return [(c["index"], c["text"], c["finish_reason"]) for chunk in chunks for c in chunk.get("choices", ())]


def joined(chunks: list[dict[str, Any]]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for index, text, _ in choices_of(chunks):
        texts[index] = texts.get(index, "") + text
    return texts


# --- whole -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-39", "API-114")
@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        (["a", "m", "x"], ["bcd", "nop", "yz{"]),
        ([[97], [98, 99]], ["bcd", "def"]),
        (["a"], ["bcd"]),
        ([97, 98], ["cde"]),
    ],
)
async def test_every_prompt_has_its_choice_in_order_and_the_usage_is_their_sum(
    open_api, prompt: Any, texts: Any
) -> None:
    backend = ScriptedBackend(Script(cached_tokens=1))
    async with open_api(backend) as api:
        answer = await api.post(COMPLETIONS, body(prompt))
    document = json.loads(answer.body)
    assert [(c["index"], c["text"], c["finish_reason"]) for c in document["choices"]] == [
        (index, text, "length") for index, text in enumerate(texts)
    ]
    tokens = sum(len(request.prompt) for request in backend.requests)
    assert document["usage"] == {
        "prompt_tokens": tokens,
        "completion_tokens": 3 * len(texts),
        "total_tokens": tokens + 3 * len(texts),
        "prompt_tokens_details": {"cached_tokens": len(texts)},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    Completion.model_validate_json(answer.body, strict=True)


@pytest.mark.spec("API-39")
async def test_a_prompt_in_a_list_makes_the_same_request_as_alone(open_api) -> None:
    alone, together = ScriptedBackend(), ScriptedBackend()
    async with open_api(alone) as api:
        for prompt in ("a", "bb"):
            await api.post(COMPLETIONS, body(prompt, seed=5))
    async with open_api(together) as api:
        await api.post(COMPLETIONS, body(["a", "bb"], seed=5))
    assert [attrs.evolve(r, request_id="") for r in together.requests] == [
        attrs.evolve(r, request_id="") for r in alone.requests
    ]


@pytest.mark.spec("API-114")
async def test_the_log_has_the_sums_of_all_choices(open_api) -> None:
    async with open_api() as api:
        await api.post(COMPLETIONS, body(["a", "bb"]))
    assert (api.records[0].prompt_tokens, api.records[0].completion_tokens) == (3, 6)


# --- echo ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-42")
@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("a", ["abcd"]),
        (["a", "mm"], ["abcd", "mmnop"]),
        ([97], ["abcd"]),
        ([[97], [0xC3]], ["abcd", "\ufffd\ufffd" * 2]),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_puts_the_prompt_before_its_answer(open_api, prompt: Any, texts: Any, stream: bool) -> None:
    async with open_api() as api:
        answer = await api.post(COMPLETIONS, body(prompt, echo=True, stream=stream))
    if stream:
        found = joined(chunks_of(answer))
    else:
        found = {choice["index"]: choice["text"] for choice in json.loads(answer.body)["choices"]}
    assert [text.rstrip("\ufffd") for _, text in sorted(found.items())] == [text.rstrip("\ufffd") for text in texts]
    assert all(text.startswith("\ufffd") for text in texts if "\ufffd" in text)


@pytest.mark.spec("API-117")
async def test_a_stop_string_in_an_echoed_prompt_stops_nothing(open_api) -> None:
    async with open_api() as api:
        answer = await api.post(COMPLETIONS, body("abc", echo=True, stop=["b", "ef"]))
    assert json.loads(answer.body)["choices"][0]["text"] == "abcd"


# --- streamed --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-41", "CASE-42")
async def test_streams_of_several_prompts_interleave_with_their_indexes(open_api, autojump_clock) -> None:
    scripts = {ord("a"): Script(prefill_s=0.5, token_s=2.0), ord("m"): Script(prefill_s=0.7, token_s=3.0)}
    backend = ScriptedBackend(lambda request: scripts[request.prompt[-1]])
    async with open_api(backend) as api:
        answer = await api.post(COMPLETIONS, body(["a", "m"], stream=True, stream_options={"include_usage": True}))
    chunks = chunks_of(answer)
    assert choices_of(chunks) == [
        (0, "b", None),
        (1, "n", None),
        (0, "c", None),
        (1, "o", None),
        (0, "d", "length"),
        (1, "p", "length"),
    ]
    assert chunks[-1]["usage"]["total_tokens"] == 8


@pytest.mark.spec("API-41")
async def test_pieces_of_several_choices_that_are_ready_together_are_one_write(open_api, autojump_clock) -> None:
    backend = ScriptedBackend(Script(prefill_s=1.0, token_s=1.0))
    async with open_api(backend) as api:
        stream = await api.server.connect().open(
            "POST", COMPLETIONS, (), json.dumps(body(["a", "m"], stream=True)).encode()
        )
        writes = []
        while part := await stream.receive():
            writes.append(part.count(b"data: "))
    assert writes == [2, 2, 3]


@pytest.mark.spec("API-41")
async def test_the_head_is_sent_when_the_first_of_several_prefills_starts(open_api, autojump_clock) -> None:
    gate = trio.Event()
    scripts = {ord("a"): Script(gates={QUEUE: gate}), ord("m"): Script()}
    backend = ScriptedBackend(lambda request: scripts[request.prompt[-1]])
    async with open_api(backend) as api:
        data = json.dumps(body(["a", "m"], stream=True)).encode()
        stream = await api.server.connect().open("POST", COMPLETIONS, (), data)
        first = await stream.receive()
        assert b'"index":1' in first
        assert b'"index":0' not in first
        gate.set()
        rest = b""
        while part := await stream.receive():
            rest += part
    assert b'"index":0' in rest


@pytest.mark.spec("API-40")
async def test_a_choice_stopped_by_a_string_leaves_the_backend_before_others(open_api, autojump_clock) -> None:
    gate = trio.Event()
    scripts = {ord("a"): Script(token_s=1.0), ord("m"): Script(gates={2: gate})}
    backend = ScriptedBackend(lambda request: scripts[request.prompt[-1]])
    async with open_api(backend) as api, trio.open_nursery() as nursery:
        nursery.start_soon(api.post, COMPLETIONS, body(["a", "m"], max_tokens=20, stop=["c"], stream=True))
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(5)
        assert (backend.counts.open, backend.counts.aborted) == (1, 1)
        gate.set()


# --- all or none are admitted, and the end ----------------------------------------------------------------------------


@pytest.mark.spec("API-40")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_list_of_prompts_is_admitted_completely_or_not_at_all(open_api, stream: bool) -> None:
    def script(request: GenerationRequest) -> Script:
        return Script(refusal=Overloaded("full")) if request.prompt == (98,) else Script(gates={0: trio.Event()})

    backend = ScriptedBackend(script)
    async with open_api(backend) as api:
        answer = await api.post(COMPLETIONS, body(["a", "b", "c"], stream=stream))
    assert (answer.status, answer.headers.get("Retry-After")) == (429, "1")
    assert (backend.counts.open, backend.counts.aborted) == (0, 1)


@pytest.mark.spec("API-115")
async def test_more_prompts_than_can_ever_be_admitted_are_400_not_429(open_api) -> None:
    backend = ScriptedBackend(info=attrs.evolve(INFO, admission_limit=2))
    async with open_api(backend) as api:
        answers = [await api.post(COMPLETIONS, body(["a"] * count)) for count in (2, 3)]
    assert [answer.status for answer in answers] == [200, 400]
    assert json.loads(answers[1].body)["error"]["param"] == "prompt"


@pytest.mark.spec("API-104")
@pytest.mark.parametrize("prompts", [["a", "b" * 65], [[1], [1] * 65]])
async def test_a_prompt_that_does_not_fit_is_refused_by_place_before_admission(open_api, prompts: Any) -> None:
    backend = ScriptedBackend()
    async with open_api(backend) as api:
        answer = await api.post(COMPLETIONS, body(prompts))
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["param"], error["code"]) == (400, "prompt[1]", "context_length_exceeded")
    assert backend.requests == []


@pytest.mark.spec("API-116")
@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (EngineFailed("gone"), 500, "engine_failed"),
        (NoCapacity("late"), 503, "no_capacity"),
        (KeyError("x"), 500, "internal_error"),
    ],
)
async def test_a_fault_of_one_choice_ends_the_whole_answer(open_api, failure: Any, status: int, code: str) -> None:
    def script(request: GenerationRequest) -> Script:
        return Script(failure=failure) if request.prompt == (98,) else Script(gates={1: trio.Event()})

    backend = ScriptedBackend(script)
    async with open_api(backend) as api:
        whole = await api.post(COMPLETIONS, body(["a", "b", "c"]))
        streamed = await api.post(COMPLETIONS, body(["a", "b", "c"], stream=True))
    assert (whole.status, json.loads(whole.body)["error"]["code"]) == (status, code)
    *_, last = chunks_of(streamed)
    assert last["error"]["code"] == code
    assert (backend.counts.open, backend.counts.failed) == (0, 2)


@pytest.mark.spec("API-41")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_every_choice(open_api, autojump_clock, stream: bool) -> None:
    backend = ScriptedBackend(Script(gates={1: trio.Event()}))
    async with open_api(backend) as api, trio.open_nursery() as nursery:
        client = api.server.connect()
        data = json.dumps(body(["a", "b", "c"], stream=stream)).encode()

        async def ask() -> None:
            with pytest.raises(ResponseBroken):
                stream = await client.open("POST", COMPLETIONS, (), data)
                while await stream.receive():
                    pass

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert backend.counts.open == 3
        await client.disconnect()
        await trio.testing.wait_all_tasks_blocked()
        assert (backend.counts.open, backend.counts.aborted) == (0, 3)
