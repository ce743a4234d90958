"""The files of sentence encoders, compared with sentence-transformers text by text, over a real socket."""

import numpy as np
import pytest

from tests.kit.http.http_calls import get, post
from tests.kit.model.encoders import SENTENCES, write_sentence_encoder
from tlserve.testing import serve_in_thread

CASES = SENTENCES["sentences"]
BOUND, LEAST_COSINE = 2e-5, 0.99999


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    models = [{"model_dir": str(write_sentence_encoder(folder / name, name))} for name in CASES]
    with serve_in_thread("succ", models=models) as running:
        yield running


def embed(server, name, given, **fields):
    return post(server.address, "/v1/embeddings", {"model": name, "input": given, **fields})


@pytest.mark.spec("MOD-91", "API-169")
@pytest.mark.parametrize("name", CASES)
def test_vectors_of_texts_are_those_of_sentence_transformers(server, name):
    for prompt, expected in CASES[name]["vectors"].items():
        data = embed(server, name, SENTENCES["texts"], **({"prompt_name": prompt} if prompt else {})).json["data"]
        for item, wanted in zip(data, expected, strict=True):
            found = np.array(item["embedding"])
            assert found.shape == np.shape(wanted)
            assert np.abs(found - wanted).max() < BOUND
            assert found @ wanted / np.linalg.norm(found) / np.linalg.norm(wanted) >= LEAST_COSINE


@pytest.mark.spec("API-169")
def test_a_role_selects_the_prompt_of_its_name(server):
    def vectors(name="prompts", **fields):
        return [item["embedding"] for item in embed(server, name, SENTENCES["texts"], **fields).json["data"]]

    assert vectors(input_type="query") == vectors(prompt_name="query") != vectors()
    assert vectors(input_type="document") == vectors(prompt_name="document") != vectors(prompt_name="passage")
    assert vectors("mean", input_type="query") == vectors("mean")  # a model without prompts
    assert vectors("dense", input_type="document") == vectors("dense")  # its default prompt
    assert vectors("prompts", prompt_name="query", dimensions=64) == vectors("prompts", prompt_name="query")


@pytest.mark.spec("API-169")
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt_name": "clustering"}, "prompt_name", "document, passage, query"),
        ({"prompt_name": "query", "input_type": "query"}, "prompt_name", "send one of them"),
        ({"input": [3, 4], "prompt_name": "query"}, "prompt_name", "has token ids"),
        ({"input": [[3], [4]], "input_type": "query"}, "input_type", "has token ids"),
        ({"input_type": "search"}, "input_type", "query"),
        ({"prompt_name": ""}, "prompt_name", "prompt"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_400_by_its_field(server, fields, param, words):
    answer = embed(
        server, "prompts", **{"given": fields.get("input", "w3"), **{k: v for k, v in fields.items() if k != "input"}}
    )
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert words in answer.json["error"]["message"]


def test_the_models_length_is_that_of_its_files(server):
    cards = {card["id"]: card["n_ctx"] for card in get(server.address, "/v1/models").json["data"]}
    assert cards["mean"] == 70  # positions begin at row 2 of 72
    answer = embed(server, "mean", " ".join(["w3"] * 69))
    assert answer.json["error"]["code"] == "context_length_exceeded"
