"""A sentence encoder next to a chat model, over a real socket."""

import json

import numpy as np
import pytest
import trio

from tests.kit.http.gated_server import gated
from tests.kit.http.http_calls import chat, get, post
from tests.kit.model.tiny_bert import (
    CLS,
    MAX_SEQ_LENGTH,
    SEP,
    UNK,
    VOCABULARY,
    naive_vector,
    tiny_bert_tensors,
    write_tiny_bert,
)
from tlserve.config.addresses import parse_address
from tlserve.http.client.connection import connect
from tlserve.model.load import load_model
from tlserve.testing import serve, serve_in_thread

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
TENSORS = tiny_bert_tensors()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    encoder = write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny-bert")
    with serve_in_thread("succ", models=[{"model_dir": str(encoder)}]) as server:
        yield server


def embed(server, given, **fields):
    return post(server.address, EMBEDDINGS, {"model": "tiny-bert", "input": given, **fields})


def ids_of(*words):
    return [CLS, *(VOCABULARY.index(word) for word in words), SEP]


@pytest.mark.spec("API-20")
def test_the_requests_model_picks_the_chat_model_or_the_encoder(two) -> None:
    answer = post(two.address, CHAT, chat("a", max_tokens=3)).json
    assert answer["choices"][0]["message"]["content"] == "bcd"
    (card,) = (card for card in get(two.address, "/v1/models").json["data"] if card["id"] == "tiny-bert")
    assert card["n_ctx"] == MAX_SEQ_LENGTH
    document = embed(two, ["The cat sat.", "sating", "🙂", " "]).json
    assert document["usage"] == {"prompt_tokens": 6 + 4 + 3 + 2, "total_tokens": 15}
    expected = [ids_of("the", "cat", "sat", "."), ids_of("sat", "##ing"), [CLS, UNK, SEP], [CLS, SEP]]
    for item, ids in zip(document["data"], expected, strict=True):
        np.testing.assert_allclose(item["embedding"], naive_vector(TENSORS, ids), atol=1e-5)


@pytest.mark.spec("API-20")
def test_one_text_among_many_has_the_same_vector_as_alone(two) -> None:
    texts = [" ".join(["cat", "sat", "the"] * (n % 7 + 1)) for n in range(40)]
    together = embed(two, texts, encoding_format="base64").json["data"]
    for n in (0, 6, 39):
        assert embed(two, texts[n], encoding_format="base64").json["data"][0]["embedding"] == together[n]["embedding"]


def test_token_ids_are_used_unchanged(two) -> None:
    ids = ids_of("the", "cat")
    assert embed(two, ids).json["data"] == embed(two, "the cat").json["data"]
    np.testing.assert_allclose(
        embed(two, ids[1:-1]).json["data"][0]["embedding"], naive_vector(TENSORS, ids[1:-1]), atol=1e-5
    )


@pytest.mark.spec("API-20")
def test_a_text_longer_than_the_encoders_limit_is_refused_and_never_cut(two) -> None:
    assert embed(two, "a " * (MAX_SEQ_LENGTH - 2)).status == 200
    refused = embed(two, ["a", "a " * (MAX_SEQ_LENGTH - 1)])
    error = refused.json["error"]
    assert (refused.status, error["code"], error["param"]) == (400, "context_length_exceeded", "input[1]")
    assert (
        "input[1] has 65 tokens, and this model's maximum context length is 64 tokens; shorten it" in error["message"]
    )


@pytest.mark.parametrize(("dimensions", "status"), [(32, 200), (33, 400), (16, 422)])
def test_dimensions_are_the_encoders_own(two, dimensions, status) -> None:
    assert embed(two, "a", dimensions=dimensions).status == status


@pytest.mark.spec("API-44")
def test_texts_are_refused_by_the_encoders_name_with_the_remedy(two) -> None:
    for path, body in (
        (CHAT, chat("a", model="tiny-bert")),
        ("/v1/completions", {"model": "tiny-bert", "prompt": "a"}),
    ):
        refused = post(two.address, path, body)
        assert (refused.status, refused.json["error"]["param"]) == (422, "model")
        assert "'tiny-bert' makes embeddings and no text; send it to /v1/embeddings" in refused.json["error"]["message"]


def test_tokenize_shows_what_the_encoder_reads(two) -> None:
    body = {"model": "tiny-bert", "text": "The cat"}
    assert post(two.address, "/v1/tokenize", body).json["tokens"] == ids_of("the", "cat")
    plain = post(two.address, "/v1/tokenize", {**body, "add_special_tokens": False}).json
    assert plain["tokens"] == ids_of("the", "cat")[1:-1]


def test_both_models_name_their_kernels(two) -> None:
    kernels = get(two.address, "/healthz").json["kernels"]
    assert kernels["tiny-bert"].startswith(("native (", "reference (numpy"))


async def test_the_start_lists_the_encoder_and_its_vectors(tmp_path, caplog) -> None:
    caplog.set_level("INFO", "tlserve")
    async with serve(write_tiny_bert(tmp_path / "tiny-bert")):
        pass
    assert "64 tokens; makes vectors of 32 numbers" in caplog.text


async def test_answers_continue_during_a_long_step_of_the_encoder(tmp_path) -> None:
    gate, loaded = gated(load_model(write_tiny_bert(tmp_path / "tiny-bert")))
    async with serve("tiny-bert", loaded=loaded, models=[{"model_dir": "succ"}]) as server:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, server, EMBEDDINGS, {"model": "tiny-bert", "input": ["a"] * 3})
                await trio.to_thread.run_sync(gate.wait_for_step)
                answer = await ask(server, CHAT, chat("a", model="succ", max_tokens=3))
                assert b'"bcd"' in answer
                gate.open_all()


async def ask(server, path: str, body: object) -> bytes:
    address = parse_address(server.address)
    async with await connect(address.host, address.port) as client:
        return (await client.request("POST", path, (), json.dumps(body).encode())).body
