"""Several prompts, echo, every form of embedding input, detokenize: the official client and a real engine."""

import base64
import struct

import openai
import pytest

from tests.kit.http.http_calls import post
from tlserve.testing import serve_in_thread

PROMPTS = ["The quick brown fox", "a", "Hello, world"]


@pytest.fixture
def client(tiny_server):
    with openai.OpenAI(base_url=tiny_server.base_url, api_key="none", max_retries=0) as client:
        yield client


def complete(client, prompt, **fields):
    return client.completions.create(model="tiny", prompt=prompt, max_tokens=12, seed=3, **fields)


@pytest.mark.spec("API-39")
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_list_of_prompts_is_answered_as_each_prompt_is_alone(client, temperature) -> None:
    together = complete(client, PROMPTS, temperature=temperature)
    alone = [complete(client, prompt, temperature=temperature) for prompt in PROMPTS]
    assert [(c.index, c.text, c.finish_reason) for c in together.choices] == [
        (index, answer.choices[0].text, answer.choices[0].finish_reason) for index, answer in enumerate(alone)
    ]
    assert together.usage.total_tokens == sum(answer.usage.total_tokens for answer in alone)


@pytest.mark.spec("CASE-42")
@pytest.mark.parametrize("echo", [False, True])
def test_a_stream_of_several_prompts_joins_to_the_whole_answers(client, echo) -> None:
    whole = complete(client, PROMPTS, echo=echo)
    texts = {}
    finishes = {}
    for chunk in complete(client, PROMPTS, echo=echo, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            finishes[choice.index] = choice.finish_reason
    assert [texts[index] for index in range(3)] == [choice.text for choice in whole.choices]
    assert set(finishes.values()) == {"length"}
    if echo:
        assert [texts[index].startswith(prompt) for index, prompt in enumerate(PROMPTS)] == [True] * 3


def test_token_ids_are_the_same_prompt_as_their_text(client, tiny_server) -> None:
    ids = [
        post(tiny_server.address, "/v1/tokenize", {"model": "tiny", "text": prompt}).json["tokens"]
        for prompt in PROMPTS
    ]
    assert [c.text for c in complete(client, ids).choices] == [c.text for c in complete(client, PROMPTS).choices]
    assert complete(client, ids[0]).choices[0].text == complete(client, PROMPTS[0]).choices[0].text
    texts = [post(tiny_server.address, "/v1/detokenize", {"model": "tiny", "tokens": one}).json["text"] for one in ids]
    assert texts == PROMPTS


def test_more_prompts_than_run_at_once_are_all_answered(tiny_path) -> None:
    settings = {"engine.max_num_seqs": 2, "engine.queue_capacity": 8}
    with serve_in_thread(tiny_path, settings=settings) as server:
        body = {"model": "tiny", "prompt": ["a"] * 10, "max_tokens": 3, "temperature": 0}
        reply = post(server.address, "/v1/completions", body)
        assert (reply.status, len({choice["text"] for choice in reply.json["choices"]})) == (200, 1)
        assert post(server.address, "/v1/completions", {**body, "prompt": ["a"] * 11}).status == 400


def vectors(client, given, **fields):
    return [item.embedding for item in client.embeddings.create(model="tiny", input=given, **fields).data]


def test_embeddings_of_texts_and_of_their_token_ids_are_the_same(client, tiny_server) -> None:
    ids = [
        post(tiny_server.address, "/v1/tokenize", {"model": "tiny", "text": prompt}).json["tokens"]
        for prompt in PROMPTS
    ]
    expected = vectors(client, PROMPTS)
    assert vectors(client, ids) == expected
    assert vectors(client, ids[1]) == vectors(client, PROMPTS[1]) == [expected[1]]


def test_base64_has_the_models_width_and_the_values_of_floats(client, tiny_server) -> None:
    body = {"model": "tiny", "input": PROMPTS[0]}
    floats = post(tiny_server.address, "/v1/embeddings", {**body, "encoding_format": "float"}).json["data"][0][
        "embedding"
    ]
    packed = post(tiny_server.address, "/v1/embeddings", {**body, "encoding_format": "base64"}).json["data"][0][
        "embedding"
    ]
    data = base64.b64decode(packed)
    assert len(data) == 4 * len(floats)
    assert list(struct.unpack(f"<{len(floats)}f", data)) == pytest.approx(floats, abs=1e-6)
    assert vectors(client, PROMPTS[0], encoding_format="float") == [floats]


def test_two_thousand_and_forty_eight_inputs_are_one_request(client) -> None:
    answer = client.embeddings.create(model="tiny", input=["a", "bb"] * 1024)
    assert [item.index for item in answer.data] == list(range(2048))
    assert answer.data[0].embedding == answer.data[2046].embedding != answer.data[1].embedding
    assert answer.usage.prompt_tokens == 3072
