"""Token ids and log-probabilities count as memory of their request, in one budget with the bodies."""

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.kit.scripted_backend import INFO, QUEUE, Script, ScriptedBackend
from tlserve.chat.logprob_entries import LogprobEntry, TokenChoice
from tlserve.chat.output.deltas import Delta
from tlserve.config.tables.network import HttpSettings
from tlserve.endpoints.answers.token_reader import AnswerPart
from tlserve.endpoints.memory import bytes_of_ids, bytes_of_parts

LARGE = attrs.evolve(INFO, context_tokens=1 << 20)
LIMIT = HttpSettings(max_bytes_in_flight=150_000)
SMALL_LIMIT = HttpSettings(max_bytes_in_flight=90_000)
"""Room for several of the prompts below. They are short enough to be read at once, without a thread."""


def completion(prompt: Any, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"model": "succ", "prompt": prompt, "max_tokens": 1, "temperature": 0, **fields}


def code_of(answer: Any) -> tuple[int, str]:
    return answer.status, json.loads(answer.body)["error"]["code"]


IDS = [7] * 600

PROMPTS = {
    "token ids": completion(IDS),
    "several lists": completion([[7] * 60] * 10),
    "copies": completion([7] * 400, n=8),
    "a text": completion("x" * 600),
    "log-probabilities of the prompt": completion([7] * 30, prompt_logprobs=5),
    "a chat": (
        "/v1/chat/completions",
        {"model": "succ", "max_tokens": 1, "messages": [{"role": "user", "content": "x" * 600}]},
    ),
}


@pytest.mark.spec("API-165")
@pytest.mark.parametrize("name", PROMPTS)
async def test_the_prompts_in_flight_have_a_limit_together(open_api: Any, name: str) -> None:
    path, fields = PROMPTS[name]
    body, gate = json.dumps(fields).encode(), trio.Event()
    backend = ScriptedBackend(Script(gates={QUEUE: gate}), LARGE)
    async with open_api(backend, SMALL_LIMIT) as api:
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await api.server.request("POST", path, (), body))

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            assert 1 <= len(answers) < 8
            assert {code_of(answer) for answer in answers} == {(503, "busy")}
            assert all(b"max_bytes_in_flight" in answer.body for answer in answers)
            assert 60_000 < api.server.server.bytes_in_flight <= 90_000
            gate.set()
        assert {answer.status for answer in answers} == {200, 503}
        assert api.server.server.bytes_in_flight == 0
        await ask()
        assert answers[-1].status == 200


@pytest.mark.spec("API-165")
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        completion([7] * 4_000),
        completion([[7] * 100] * 40),
        completion("x" * 4_000),
        completion([7] * 200, prompt_logprobs=5),
        ("/v1/embeddings", {"model": "succ", "input": [7] * 4_000}),
        ("/v1/detokenize", {"model": "succ", "tokens": [7] * 4_000}),
        ("/v1/tokenize", {"model": "succ", "text": "x" * 40_000}),
    ],
)
async def test_a_request_above_the_limit_alone_gets_413(open_api: Any, path: str, fields: dict[str, Any]) -> None:
    async with open_api(ScriptedBackend(info=LARGE), LIMIT) as api:
        answer = await api.post(path, fields)
        assert code_of(answer) == (413, "request_too_large")
        assert b"max_bytes_in_flight" in answer.body
        assert api.backend.requests == []
        await wait_all_tasks_blocked()
        assert api.server.server.bytes_in_flight == 0


# --- answers -------------------------------------------------------------------------------------------------------------


def with_logprobs(tokens: int, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "a"}]
    return {"model": "succ", "messages": messages, "max_tokens": tokens, "logprobs": True, "top_logprobs": 20, **fields}


CHAT = "/v1/chat/completions"


def gated(gate: trio.Event, tokens: int) -> ScriptedBackend:
    """Return a backend that gives a request of `tokens` all but its last one until `gate` is set; others have no wait."""
    return ScriptedBackend(
        lambda request: Script(gates={tokens - 1: gate} if request.max_tokens == tokens else {}), LARGE
    )


@pytest.mark.spec("API-166")
async def test_the_log_probabilities_of_whole_answers_have_a_limit_together(open_api: Any) -> None:
    gate = trio.Event()
    async with open_api(gated(gate, 21), LIMIT) as api, trio.open_nursery() as nursery:
        first = json.dumps(with_logprobs(21)).encode()
        nursery.start_soon(api.server.request, "POST", CHAT, (), first)
        await wait_all_tasks_blocked()
        held_bytes = api.server.server.bytes_in_flight
        assert held_bytes > 20 * 21 * 100
        assert code_of(await api.post(CHAT, with_logprobs(30))) == (503, "busy")
        assert api.backend.counts.aborted == 1
        await wait_all_tasks_blocked()
        assert api.server.server.bytes_in_flight == held_bytes
        gate.set()
        await wait_all_tasks_blocked()
        assert api.server.server.bytes_in_flight == 0
        assert (await api.post(CHAT, with_logprobs(30))).status == 200


@pytest.mark.spec("API-166")
async def test_a_whole_answer_with_too_many_log_probabilities_gets_413(open_api: Any) -> None:
    async with open_api(ScriptedBackend(info=LARGE), LIMIT) as api:
        assert code_of(await api.post(CHAT, with_logprobs(60))) == (413, "request_too_large")
        assert code_of(await api.post(CHAT, with_logprobs(15, n=4))) == (413, "request_too_large")
        assert (await api.post(CHAT, with_logprobs(30))).status == 200
        assert (await api.post(CHAT, with_logprobs(60, top_logprobs=0))).status == 200


@pytest.mark.spec("API-166")
async def test_a_stream_counts_only_what_is_not_yet_sent(open_api: Any) -> None:
    gate = trio.Event()
    gates = {1: {}, 300: {1: gate}}
    backend = ScriptedBackend(lambda request: Script(batch_tokens=request.seed, gates=gates[request.seed]), LARGE)
    async with open_api(backend, LIMIT) as api, trio.open_nursery() as nursery:
        answer = await api.post(CHAT, with_logprobs(300, stream=True, seed=1))
        assert answer.body.count(b"data: ") == 301
        assert b"error" not in answer.body
        cut: list[Any] = []

        async def ask() -> None:
            cut.append(await api.post(CHAT, with_logprobs(300, stream=True, seed=300)))

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        gate.set()
        await wait_all_tasks_blocked()
        *_, event, done, _ = cut[0].body.split(b"\n\n")
        assert done == b"data: [DONE]"
        assert b"max_bytes_in_flight" in event
        assert api.server.server.bytes_in_flight == 0


# --- the estimates -------------------------------------------------------------------------------------------------------


@pytest.fixture
def grown() -> Iterator[Callable[[Callable[[], object]], float]]:
    """Give a function that makes an object and returns the bytes that it takes."""
    gc.collect()
    tracemalloc.start()

    def measure(make: Callable[[], object]) -> float:
        before = tracemalloc.get_traced_memory()[0]
        made = make()
        return tracemalloc.get_traced_memory()[0] - before if made is not None else 0

    yield measure
    tracemalloc.stop()


def test_the_estimate_for_token_ids_is_near_what_they_take(grown: Callable[..., float]) -> None:
    text = json.dumps([100_000 + number for number in range(50_000)])
    assert 0.8 < bytes_of_ids(50_000) / grown(lambda: json.loads(text)) < 1.3


@pytest.mark.parametrize("top", [0, 5, 20])
def test_the_estimate_for_log_probabilities_is_near_what_they_take(grown: Callable[..., float], top: int) -> None:
    def choice(number: int) -> TokenChoice:
        return TokenChoice(1_000 + number, b"%05d" % number, number / 7)

    def parts() -> list[AnswerPart]:
        entries = (LogprobEntry(choice(number), tuple(map(choice, range(top))), number) for number in range(300))
        return [AnswerPart(Delta(content="", logprobs=(entry,))) for entry in entries]

    empty = [AnswerPart(Delta(content="", logprobs=())) for _ in range(300)]
    without = grown(lambda: [AnswerPart(Delta(content="", logprobs=())) for _ in empty])
    assert 0.8 < bytes_of_parts(parts()) / (grown(parts) - without) < 1.3
