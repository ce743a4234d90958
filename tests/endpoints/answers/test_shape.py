"""The options of an answer: number, length, stops, log-probabilities, ids and usage."""

import itertools
import json
from typing import Any

import attrs
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from tests.kit.http.http_calls import parse_events
from tests.kit.model.tiny_tokenizers import gpt2_metadata
from tests.kit.scripted_backend import INFO, Script, ScriptedBackend
from tlserve.chat.dialects.json_calls import QWEN3
from tlserve.chat.messages import Role, Turn, conversation_of
from tlserve.generation import GenerationRequest
from tlserve.sampling_params import SamplingParams
from tlserve.text.tokenizer import build_tokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WIDE = attrs.evolve(INFO, context_tokens=4096)


def completion(prompt: Any = "a", **fields: Any) -> dict[str, Any]:
    return {"model": "succ", "prompt": prompt, "max_tokens": 3, "temperature": 0, **fields}


def document(answer: Any) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    found: dict[str, Any] = json.loads(answer.body)
    return found


def error(answer: Any) -> tuple[int, str | None]:
    return answer.status, json.loads(answer.body)["error"]["param"]


def chunks(answer: Any) -> list[dict[str, Any]]:
    *events, done = parse_events(answer.body)
    assert (answer.status, done) == (200, "[DONE]")
    return events


# --- requests to the backend --------------------------------------------------------------------------------------


@pytest.mark.spec("API-61")
@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"frequency_penalty": 0.5}, {"sampling": SamplingParams(temperature=0, frequency_penalty=0.5)}),
        ({"presence_penalty": -2}, {"sampling": SamplingParams(temperature=0, presence_penalty=-2)}),
        ({"repetition_penalty": 1.5}, {"sampling": SamplingParams(temperature=0, repetition_penalty=1.5)}),
        ({"repeat_penalty": 1.5}, {"sampling": SamplingParams(temperature=0, repetition_penalty=1.5)}),
        ({"logit_bias": {"7": -1, "0": 5}}, {"sampling": SamplingParams(temperature=0, logit_bias=((0, 5), (7, -1)))}),
        ({"min_tokens": 2}, {"min_tokens": 2}),
        ({"stop_token_ids": [3, 255]}, {"stop_ids": frozenset({0, 3, 255})}),
        ({"stop_token_ids": [3], "ignore_eos": True}, {"stop_ids": frozenset({3})}),
        ({"cache_salt": "mine"}, {"cache_salt": "mine"}),
        ({"prompt_logprobs": 4}, {"prompt_logprobs": 4}),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_each_field_reaches_the_backend(open_api, path: str, fields: Any, asked: Any) -> None:
    backend = ScriptedBackend()
    async with open_api(backend, eos_ids=frozenset({0})) as api:
        answer = await (api.chat(**fields) if path == CHAT else api.post(path, completion(**fields)))
    assert answer.status == 200, answer.body
    expected = GenerationRequest(
        prompt=(97,),
        max_tokens=3,
        seed=77,
        sampling=SamplingParams(temperature=0),
        stop_ids=frozenset({0}),
        tenant="address ",
    )
    conversation = conversation_of([Turn(role=Role.USER, text="a")]) if path == CHAT else ""
    expected = attrs.evolve(expected, conversation=conversation, request_id=backend.requests[0].request_id)
    assert backend.requests == [attrs.evolve(expected, **asked)]


@pytest.mark.spec("API-61")
async def test_the_models_penalties_apply_where_the_request_has_none(open_api) -> None:
    backend = ScriptedBackend()
    makers = SamplingParams(repetition_penalty=1.1, presence_penalty=0.5)
    async with open_api(backend, default_sampling=makers) as api:
        await api.chat(presence_penalty=0)
        await api.chat(repeat_penalty=0)
    assert [(r.sampling.repetition_penalty, r.sampling.presence_penalty) for r in backend.requests] == [
        (1.1, 0),
        (1, 0.5),
    ]


@pytest.mark.spec("API-127")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"256": 1}}, "logit_bias"),
        ({"stop_token_ids": [1, 256]}, "stop_token_ids"),
        ({"stop_token_ids": [10**30]}, "stop_token_ids"),
        ({"min_tokens": 4}, "min_tokens"),
        ({"min_tokens": 64, "max_tokens": None}, "min_tokens"),
        ({"min_tokens": 10**300}, "min_tokens"),
    ],
)
async def test_ids_that_the_model_lacks_are_400_before_admission(open_api, fields: Any, param: str) -> None:
    backend = ScriptedBackend()
    async with open_api(backend) as api:
        assert error(await api.chat(**fields)) == (400, param)
        assert error(await api.post(COMPLETIONS, completion(**fields))) == (400, param)
    assert backend.requests == []


@pytest.mark.spec("API-62")
async def test_a_control_token_can_be_biased_by_id_but_never_by_name(open_api) -> None:
    async with open_api(eos_ids=frozenset({0})) as api:
        assert (await api.chat(logit_bias={"0": -100})).status == 200
        assert error(await api.chat(logit_bias={"<|im_end|>": -100})) == (400, "logit_bias")


# --- several answers ------------------------------------------------------------------------------------------------


def after_choice(request: GenerationRequest) -> tuple[int, ...]:
    """Return tokens that identify the choice: its letter is the first."""
    return tuple(ord("A") + request.choice + index for index in range(request.max_tokens))


@pytest.mark.spec("API-60")
@pytest.mark.parametrize("batch_tokens", [1, 9])
async def test_n_answers_to_a_chat_are_numbered_and_their_prompt_counts_once(open_api, batch_tokens: int) -> None:
    backend = ScriptedBackend(Script(tokens=after_choice, cached_tokens=1, batch_tokens=batch_tokens))
    async with open_api(backend) as api:
        whole = document(await api.chat("aa", n=3, seed=5))
        streamed = chunks(await api.chat("aa", n=3, seed=5, stream=True, stream_options={"include_usage": True}))
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in whole["choices"]] == [
        (0, "ABC", "length"),
        (1, "BCD", "length"),
        (2, "CDE", "length"),
    ]
    assert whole["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 9,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert streamed[-1]["usage"] == whole["usage"]
    roles = [chunk["choices"][0]["index"] for chunk in streamed[:-1] if "role" in chunk["choices"][0]["delta"]]
    assert roles == [0, 1, 2]
    for choice in whole["choices"]:
        own = [c for chunk in streamed for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(c["delta"]["content"] for c in own) == choice["message"]["content"]
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + ["length"]
    assert [(r.choice, r.seed) for r in backend.requests] == [(0, 5), (1, 5), (2, 5)] * 2
    ChatCompletion.model_validate(whole)


@pytest.mark.spec("API-60", "CASE-42")
@pytest.mark.parametrize("stream", [False, True])
async def test_the_choices_of_prompt_i_begin_at_i_times_n(open_api, stream: bool) -> None:
    async with open_api(ScriptedBackend(Script(tokens=lambda r: [r.prompt[-1], 65 + r.choice, 46]))) as api:
        answer = await api.post(COMPLETIONS, completion(["a", "b", "c"], n=2, stream=stream))
    found = [document(answer)] if not stream else chunks(answer)
    texts: dict[int, str] = {}
    for choice in itertools.chain.from_iterable(part["choices"] for part in found):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert [texts[index] for index in range(6)] == ["aA.", "aB.", "bA.", "bB.", "cA.", "cB."]


@pytest.mark.spec("API-60")
async def test_more_answers_than_can_ever_be_admitted_are_400(open_api) -> None:
    async with open_api(ScriptedBackend(info=attrs.evolve(INFO, admission_limit=3))) as api:
        assert (await api.chat(n=3)).status == 200
        assert error(await api.chat(n=4)) == (400, "n")


# --- stops ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-63", "CASE-41", "API-129")
@pytest.mark.parametrize(
    ("fields", "content", "finish"),
    [
        ({"stop": ["d"], "min_tokens": 0}, "bc", "stop"),
        ({"stop": ["d"], "min_tokens": 3}, "bcdefghijklmnopqrstu", "length"),
        ({"stop": ["de"], "min_tokens": 3}, "bc", "stop"),
        ({"stop": ["de", "x"], "min_tokens": 20}, "bcdefghijklmnopqrstu", "length"),
        ({"stop": ["de"], "include_stop_str_in_output": True}, "bcde", "stop"),
        ({"stop_token_ids": [100]}, "bc", "stop"),
        ({"stop_token_ids": [100], "include_stop_str_in_output": True}, "bc", "stop"),
        ({"stop_token_ids": [100], "min_tokens": 3}, "bceefghijklmnopqrstu", "length"),
        ({"stop_token_ids": [100], "ignore_eos": True}, "bc", "stop"),
    ],
)
async def test_an_answer_stops_at_the_right_token_whole_and_streamed(
    open_api, fields: Any, content: str, finish: str
) -> None:
    for batch_tokens in (1, 30):
        async with open_api(ScriptedBackend(Script(batch_tokens=batch_tokens))) as api:
            whole = document(await api.chat(max_tokens=20, **fields))["choices"][0]
            streamed = chunks(await api.chat(max_tokens=20, stream=True, **fields))
        assert (whole["message"]["content"], whole["finish_reason"]) == (content, finish)
        assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in streamed) == content
        assert streamed[-1]["choices"][0]["finish_reason"] == finish


# --- log-probabilities ----------------------------------------------------------------------------------------------

FAMILY = "👩‍👩‍👧 漢字 é"


@pytest.mark.spec("CASE-10", "API-64")
@pytest.mark.parametrize("stop", [[], ["漢字 é"], ["字"]])
async def test_the_bytes_of_all_entries_are_the_content_and_stops_have_none(open_api, stop: list[str]) -> None:
    """Every emoji is several tokens here: the tokens are bytes."""
    data = FAMILY.encode()
    fields = {"logprobs": True, "top_logprobs": 5, "max_tokens": len(data), "stop": stop}
    async with open_api(ScriptedBackend(Script(tokens=tuple(data)), info=WIDE)) as api:
        whole = document(await api.chat(**fields))
        streamed = chunks(await api.chat(**fields, stream=True))
    choice = whole["choices"][0]
    entries = choice["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == choice["message"]["content"]
    tail = len("".join(stop).encode())
    assert len(entries) == whole["usage"]["completion_tokens"] - tail
    parts = [chunk["choices"][0]["logprobs"] for chunk in streamed]
    assert [entry for part in parts if part for entry in part["content"]] == entries
    assert all(entry["token"] and entry["bytes"] != [239, 191, 189] for entry in entries)


@pytest.mark.spec("API-131")
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("prompt", ["é漢", [[0xC3, 0xA9, 0x21]], "a"])
async def test_a_completions_offsets_are_the_places_of_its_tokens_in_its_text(
    open_api, prompt: Any, echo: bool
) -> None:
    data = "b👩é".encode()
    fields = {"logprobs": 2, "max_tokens": len(data), "echo": echo}
    async with open_api(ScriptedBackend(Script(tokens=tuple(data)), info=WIDE)) as api:
        whole = document(await api.post(COMPLETIONS, completion(prompt, **fields)))
        streamed = chunks(await api.post(COMPLETIONS, completion(prompt, **fields, stream=True)))
    (choice,) = whole["choices"]
    logprobs = choice["logprobs"]
    places = [place for place, character in enumerate(choice["text"]) for _ in character.encode()]
    assert logprobs["text_offset"] == places
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(places)
    assert [value is None for value in logprobs["token_logprobs"]] == [echo, *[False] * (len(places) - 1)]
    assert [value is None for value in logprobs["top_logprobs"]] == [echo, *[False] * (len(places) - 1)]
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == choice["text"]
    parts = [chunk["choices"][0]["logprobs"] for chunk in streamed]
    for name, values in logprobs.items():
        assert [value for part in parts if part for value in part[name]] == values
    if not echo:  # the client's type has no null, which the public API gives the first token of an echo
        Completion.model_validate(whole)


@pytest.mark.spec("API-65")
async def test_a_completion_without_logprobs_has_null_and_0_gives_the_token_only(open_api) -> None:
    async with open_api() as api:
        plain = document(await api.post(COMPLETIONS, completion()))["choices"][0]["logprobs"]
        zero = document(await api.post(COMPLETIONS, completion(logprobs=0)))["choices"][0]["logprobs"]
    assert plain is None
    assert zero["top_logprobs"] == [{"b": -0.25}, {"c": -0.25}, {"d": -0.25}]


@pytest.mark.spec("API-66", "API-135")
@pytest.mark.parametrize("chunk_tokens", [1, 2, 99])
async def test_a_prompts_logprobs_begin_with_null_and_have_token_ids_as_names(open_api, chunk_tokens: int) -> None:
    backend = ScriptedBackend(Script(chunk_tokens=chunk_tokens))
    async with open_api(backend) as api:
        chat = document(await api.chat("abc", prompt_logprobs=2, n=2))
        texts = document(await api.post(COMPLETIONS, completion(["abc", "a"], prompt_logprobs=1, n=2)))
    first, second, third = chat["prompt_logprobs"]
    assert first is None
    assert second == {
        "98": {"logprob": -0.25, "rank": 1, "decoded_token": "b"},
        "99": {"logprob": -1.25, "rank": 2, "decoded_token": "c"},
    }
    assert list(third) == ["99", "100"]
    assert [[entry and list(entry) for entry in c["prompt_logprobs"]] for c in texts["choices"]] == [
        [None, ["98"], ["99"]],
        [None, ["98"], ["99"]],
        [None],
        [None],
    ]
    assert [request.prompt_logprobs for request in backend.requests] == [2, None, 1, None, 1, None]
    ChatCompletion.model_validate(chat)


@pytest.mark.spec("API-66")
async def test_an_echo_and_the_prompt_can_have_different_numbers_of_logprobs(open_api) -> None:
    backend = ScriptedBackend()
    async with open_api(backend) as api:
        body = completion("ab", echo=True, logprobs=1, prompt_logprobs=3, n=2)
        choices = document(await api.post(COMPLETIONS, body))["choices"]
    assert [request.prompt_logprobs for request in backend.requests] == [3, 1]
    for choice in choices:
        assert [top and len(top) for top in choice["logprobs"]["top_logprobs"]] == [None, 1, 1, 1, 1]
        assert [entry and len(entry) for entry in choice["prompt_logprobs"]] == [None, 3]


@pytest.mark.spec("API-158")
async def test_tokens_of_logprobs_can_be_ids_whole_and_streamed(open_api) -> None:
    async with open_api() as api:
        asked = {"logprobs": 0, "echo": True, "return_tokens_as_token_ids": True}
        whole = document(await api.post(COMPLETIONS, completion("a", **asked)))
        streamed = chunks(await api.post(COMPLETIONS, completion("a", **asked, stream=True)))
        chat = document(await api.chat("a", logprobs=True, return_tokens_as_token_ids=True))
    names = [f"token_id:{token}" for token in (97, 98, 99, 100)]
    assert whole["choices"][0]["logprobs"]["tokens"] == names
    parts = [chunk["choices"][0]["logprobs"] for chunk in streamed]
    assert [name for part in parts if part for name in part["tokens"]] == names
    assert [entry["token"] for entry in chat["choices"][0]["logprobs"]["content"]] == names[1:]


@pytest.mark.spec("API-164")
@pytest.mark.parametrize("logprobs", [None, 1])
@pytest.mark.parametrize("n", [1, 2])
async def test_an_echo_without_tokens_is_the_prompt_with_its_logprobs(open_api, logprobs: int | None, n: int) -> None:
    backend = ScriptedBackend()
    async with open_api(backend) as api:
        asked = completion(["abc", "de"], echo=True, max_tokens=0, logprobs=logprobs, n=n)
        whole = document(await api.post(COMPLETIONS, asked))
        streamed = chunks(await api.post(COMPLETIONS, {**asked, "stream": True}))
        longer = document(await api.post(COMPLETIONS, {**asked, "max_tokens": 1}))
    assert [choice["text"] for choice in whole["choices"]] == ["abc"] * n + ["de"] * n
    assert {choice["finish_reason"] for choice in whole["choices"]} == {"length"}
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (5, 0)
    for index, (choice, same) in enumerate(zip(whole["choices"], longer["choices"], strict=True)):
        own = [c for chunk in streamed for c in chunk["choices"] if c["index"] == index]
        assert "".join(c["text"] for c in own) == choice["text"]
        assert own[-1]["finish_reason"] == "length"
        if logprobs is not None:
            kept = {name: values[: len(choice["text"])] for name, values in same["logprobs"].items()}
            assert choice["logprobs"] == kept
    assert backend.counts.open == 0


@pytest.mark.spec("API-164")
async def test_no_tokens_without_an_echo_are_refused(open_api) -> None:
    async with open_api() as api:
        assert error(await api.post(COMPLETIONS, completion(max_tokens=0))) == (400, "max_tokens")
        assert error(await api.chat(max_tokens=0)) == (400, "max_tokens")


# --- control tokens -------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-157")
@pytest.mark.parametrize(("skips", "text"), [(False, "<x>a<x>b"), (True, "ab")])
async def test_control_tokens_are_in_text_and_echo_if_not_skipped(open_api, skips: bool, text: str) -> None:
    tokenizer = build_tokenizer(gpt2_metadata(control=["</s>", "<x>"]))
    mark = tokenizer.special_tokens["<x>"]
    script = Script(tokens=(*tokenizer.encode("a"), mark, *tokenizer.encode("b")))
    backend = ScriptedBackend(script, info=attrs.evolve(WIDE, vocabulary_size=tokenizer.vocabulary_size))
    async with open_api(backend, tokenizer=tokenizer) as api:
        asked = completion([[mark]], echo=True, skip_special_tokens=skips)
        whole = document(await api.post(COMPLETIONS, asked))
        streamed = chunks(await api.post(COMPLETIONS, {**asked, "stream": True}))
        chat = document(await api.chat(skip_special_tokens=skips))
    assert whole["choices"][0]["text"] == text
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == text
    assert chat["choices"][0]["message"]["content"] == text.removeprefix("<x>")


# --- ids ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-67", "API-136")
@pytest.mark.parametrize("fields", [{}, {"stop": ["de"]}, {"stop_token_ids": [100]}])
async def test_the_ids_of_all_tokens_are_in_the_chat_and_its_chunks(open_api, fields: Any) -> None:
    async with open_api() as api:
        whole = document(await api.chat("aa", return_token_ids=True, max_tokens=6, n=2, **fields))
        asked = {"return_token_ids": True, "max_tokens": 6, "n": 2, "stream": True, **fields}
        streamed = chunks(await api.chat("aa", **asked))
    assert whole["prompt_token_ids"] == [97, 97]
    drawn = whole["usage"]["completion_tokens"] // 2
    assert [choice["token_ids"] for choice in whole["choices"]] == [list(range(98, 98 + drawn))] * 2
    assert [chunk.get("prompt_token_ids") for chunk in streamed] == [[97, 97], *[None] * (len(streamed) - 1)]
    for index in range(2):
        own = [c for chunk in streamed for c in chunk["choices"] if c["index"] == index]
        assert [token for c in own for token in c.get("token_ids", ())] == whole["choices"][index]["token_ids"]


@pytest.mark.spec("API-67", "API-136")
@pytest.mark.parametrize("echo", [False, True])
async def test_the_ids_of_completions_are_in_their_choices(open_api, echo: bool) -> None:
    async with open_api() as api:
        whole = document(await api.post(COMPLETIONS, completion(["a", "bb"], return_token_ids=True, echo=echo)))
        asked = completion(["a", "bb"], return_token_ids=True, echo=echo, stream=True)
        streamed = chunks(await api.post(COMPLETIONS, asked))
    expected = [([97], [98, 99, 100]), ([98, 98], [99, 100, 101])]
    assert [(c["prompt_token_ids"], c["token_ids"]) for c in whole["choices"]] == expected
    for index, (prompt, tokens) in enumerate(expected):
        own = [c for chunk in streamed for c in chunk["choices"] if c["index"] == index]
        assert [c.get("prompt_token_ids") for c in own] == [prompt, *[None] * (len(own) - 1)]
        assert [token for c in own for token in c["token_ids"]] == tokens


@pytest.mark.spec("API-67")
async def test_ids_that_were_not_requested_are_absent(open_api) -> None:
    async with open_api() as api:
        answers = [await api.chat(), await api.chat(stream=True), await api.post(COMPLETIONS, completion())]
    assert not any(b"token_ids" in answer.body for answer in answers)


# --- usage ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-68")
@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("batch_tokens", [1, 9])
async def test_usage_on_every_chunk_grows_to_that_of_the_whole_answer(
    open_api, include_usage: bool, batch_tokens: int
) -> None:
    options = {"continuous_usage_stats": True, "include_usage": include_usage}
    async with open_api(ScriptedBackend(Script(batch_tokens=batch_tokens, cached_tokens=1))) as api:
        whole = document(await api.chat("aa", n=2, stop=["de"], max_tokens=9))["usage"]
        streamed = chunks(await api.chat("aa", n=2, stop=["de"], max_tokens=9, stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in streamed]
    assert {chunk["usage"]["prompt_tokens"] for chunk in streamed} == {2}
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert streamed[-1]["usage"] == whole
    assert [chunk["choices"] == [] for chunk in streamed] == [False] * (len(streamed) - 1) + [include_usage]


@pytest.mark.spec("API-68")
async def test_each_chunk_of_a_batch_has_the_usage_up_to_it(open_api) -> None:
    async with open_api(ScriptedBackend(Script(batch_tokens=99))) as api:
        options = {"continuous_usage_stats": True}
        streamed = chunks(await api.post(COMPLETIONS, completion(stream=True, stream_options=options)))
    assert [chunk["usage"]["completion_tokens"] for chunk in streamed] == [1, 2, 3]


@pytest.mark.spec("API-69")
async def test_tokens_of_reasoning_are_counted_separately(open_api) -> None:
    data = b"<think>ab</think>c"
    fields = {"max_tokens": len(data), "stream_options": {"continuous_usage_stats": True}, "stream": True}
    async with open_api(ScriptedBackend(Script(tokens=tuple(data)), info=WIDE), dialect=QWEN3) as api:
        whole = document(await api.chat(max_tokens=len(data)))
        streamed = chunks(await api.chat(**fields))
    expected = {"reasoning_tokens": len(b"<think>ab")}
    assert whole["usage"]["completion_tokens_details"] == expected
    assert streamed[-1]["usage"] == whole["usage"]
    seen = [chunk["usage"]["completion_tokens_details"]["reasoning_tokens"] for chunk in streamed]
    assert seen == sorted(seen)
