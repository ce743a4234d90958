"""POST /infill."""

import json
from typing import Any

import attrs
import pytest

from tests.kit.chat.infill_vocabularies import RECORDED, tokenizer_of
from tests.kit.scripted_backend import INFO, Script, ScriptedBackend
from tlserve.chat.infill import FillTokens, fill_tokens
from tlserve.chat.served_model import Served

TOKENIZER = tokenizer_of("qwen")
IDS = RECORDED["families"]["qwen"]["ids"]
LARGE = attrs.evolve(INFO, context_tokens=4096, vocabulary_size=TOKENIZER.vocabulary_size)
GAP = {"input_prefix": "a = ", "input_suffix": "\n"}
A, NEWLINE = TOKENIZER.encode("a")[0], TOKENIZER.encode("\n")[0]


def backend_of(*tokens: int) -> ScriptedBackend:
    """Return a backend whose answers are `tokens`, as far as they may be long."""
    return ScriptedBackend(Script(tokens=lambda request: tokens[: request.max_tokens]), LARGE)


def marks() -> FillTokens:
    return fill_tokens(Served(model_id="succ", backend=backend_of(), tokenizer=TOKENIZER))


def events(body: bytes) -> list[dict[str, Any]]:
    """Return the documents of a stream of which every event is one."""
    assert body.endswith(b"\n\n")
    return [json.loads(event.removeprefix("data: ")) for event in body.decode().removesuffix("\n\n").split("\n\n")]


@pytest.mark.spec("API-205")
@pytest.mark.parametrize("number", [0, 9, 40])
async def test_the_backend_gets_the_prompt_of_llama_cpp(open_api, number: int) -> None:
    backend = backend_of(A)
    case = {name: value for name, value in RECORDED["cases"][number].items() if not name.startswith("n_")}
    async with open_api(backend, tokenizer=TOKENIZER) as api:
        answer = await api.post("/infill", {**case, "n_predict": 1})
    assert answer.status == 200, answer.body
    assert backend.requests[0].prompt == tuple(map(int, IDS[number].split()))


@pytest.mark.spec("API-207")
async def test_an_answer_has_the_members_of_llama_cpp(open_api) -> None:
    async with open_api(backend_of(A, NEWLINE, A), tokenizer=TOKENIZER) as api:
        document = json.loads((await api.post("/infill", {**GAP, "n_predict": 3})).body)
    timings = document.pop("timings")
    prompt_tokens = timings["prompt_n"]
    assert document == {
        "index": 0,
        "content": "a\na",
        "tokens": [],
        "stop": True,
        "model": "succ",
        "tokens_predicted": 3,
        "tokens_evaluated": prompt_tokens,
        "has_new_line": True,
        "truncated": False,
        "stop_type": "limit",
        "stopping_word": "",
        "tokens_cached": 0,
    }
    assert set(timings) == {
        "cache_n",
        *(f"{part}_{name}" for part in ("prompt", "predicted") for name in ("n", "ms", "per_token_ms", "per_second")),
    }


@pytest.mark.spec("API-207")
async def test_the_pieces_of_a_stream_join_to_the_whole_answer(open_api) -> None:
    async with open_api(backend_of(A, NEWLINE, A), tokenizer=TOKENIZER) as api:
        whole = json.loads((await api.post("/infill", {**GAP, "n_predict": 3})).body)
        answer = await api.post("/infill", {**GAP, "n_predict": 3, "stream": True})
    *pieces, last = events(answer.body)
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert [piece["stop"] for piece in pieces] == [False] * 3
    assert last | {"content": whole["content"], "timings": whole["timings"]} == whole


@pytest.mark.spec("API-207")
@pytest.mark.parametrize(("stop", "kind", "word"), [(["\n"], "word", "\n"), ([], "eos", "")])
async def test_an_answer_says_what_ended_it(open_api, stop: list[str], kind: str, word: str) -> None:
    file = marks().file
    assert file is not None
    async with open_api(backend_of(A, NEWLINE, file, A, A), tokenizer=TOKENIZER) as api:
        document = json.loads((await api.post("/infill", {**GAP, "n_predict": 5, "stop": stop})).body)
    assert (document["stop_type"], document["stopping_word"]) == (kind, word)
    assert document["content"] == ("a" if stop else "a\n")


@pytest.mark.spec("API-206")
async def test_a_model_without_these_tokens_is_refused_by_name(open_api) -> None:
    async with open_api() as api:
        answer = await api.post("/infill", GAP)
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["param"]) == (422, "model")
    assert "'succ' cannot fill in" in error["message"]


@pytest.mark.spec("API-206", "API-12")
@pytest.mark.parametrize(("headers", "count"), [((), 1), ((("X-TL-Special-Tokens", "1"),), 2)])
async def test_the_prompt_spells_tokens_only_with_that_header(
    open_api, headers: tuple[tuple[str, str], ...], count: int
) -> None:
    backend = backend_of(A)
    async with open_api(backend, tokenizer=TOKENIZER) as api:
        await api.post("/infill", {**GAP, "prompt": "<|fim_middle|>", "n_predict": 1}, *headers)
    assert backend.requests[0].prompt.count(marks().middle) == count


async def test_texts_of_any_length_leave_room_for_the_answer(open_api) -> None:
    backend = ScriptedBackend(Script(tokens=lambda request: (A,) * request.max_tokens, batch_tokens=9999), LARGE)
    files = [{"text": "x = 1\n" * 2000}]
    body = {"input_prefix": "a = 1\n" * 2000, "input_suffix": "b = 2\n" * 2000, "input_extra": files}
    async with open_api(backend, tokenizer=TOKENIZER) as api:
        answers = [await api.post("/infill", {**body, "n_predict": count}) for count in (1, 64, 1024, 4096)]
        answers.append(await api.post("/infill", body))
    assert [answer.status for answer in answers] == [200] * 5
    assert [request.max_tokens for request in backend.requests[:3]] == [1, 64, 1024]
    assert backend.requests[4].max_tokens > 512


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"input_prefix": None}, 400, "input_prefix"),
        ({"input_suffix": 1}, 400, "input_suffix"),
        ({"input_extra": [{"filename": "x"}]}, 400, "input_extra"),
        ({"input_extra": [{"text": ""}] * 1025}, 400, "input_extra"),
        ({"prompt": [1]}, 400, "prompt"),
        ({"n": 2}, 422, "n"),
        ({"n_probs": 2}, 422, "n_probs"),
    ],
)
async def test_a_wrong_field_is_refused_by_its_name(open_api, fields: dict[str, Any], status: int, param: str) -> None:
    async with open_api(backend_of(A), tokenizer=TOKENIZER) as api:
        answer = await api.post("/infill", {**GAP, **fields})
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["param"]) == (status, param)


async def test_unknown_members_of_a_file_are_named(open_api) -> None:
    async with open_api(backend_of(A), tokenizer=TOKENIZER) as api:
        answer = await api.post("/infill", {**GAP, "n_predict": 1, "zz": 1, "input_extra": [{"text": "", "time": 1}]})
    assert answer.headers.get("x-tl-ignored") == "zz, input_extra[].time"
