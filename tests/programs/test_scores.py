"""Rerank, score and classify, compared with sentence-transformers and transformers, over a real socket."""

import time

import numpy as np
import pytest

from tests.kit.http.http_calls import get, post
from tests.kit.model.encoders import SENTENCES, encoder_cases, whole_hidden, write_encoder, write_sentence_encoder
from tlserve.endpoints.routes.scores import activated
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.engine.events import EmbeddingReady
from tlserve.engine.pooling import HiddenSum
from tlserve.model.load import load_model
from tlserve.testing import serve_in_thread
from tlserve.text.tokenizer import build_tokenizer

CASES = encoder_cases()
PAIRS, TEXTS = SENTENCES["texts_of_pairs"], SENTENCES["texts"]
BOUND = 2e-5
ONE = ["bert, scores", "xlm-roberta, scores", "modernbert, scores"]
MODELS = [*ONE, "bert, classes"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    paths = [write_encoder(folder / name, CASES[name]) for name in MODELS]
    paths.append(write_sentence_encoder(folder / "prompts", "prompts"))
    models = [{"model_dir": str(path), "model_id": path.name} for path in paths]
    with serve_in_thread("succ", models=models) as running:
        yield running


def ask(server, path, model, **fields):
    return post(server.address, path, {"model": model, **fields})


def rerank(server, model, path="/v1/rerank", **fields):
    return ask(server, path, model, **{"query": "w5 w9 w31", "documents": ["w8 w8 w40 w12", "w3", "w77 w78"], **fields})


@pytest.mark.spec("API-170")
@pytest.mark.parametrize("name", ONE)
def test_scores_of_pairs_are_those_of_sentence_transformers(server, name):
    firsts, seconds = [pair[0] for pair in PAIRS], [pair[1] for pair in PAIRS]
    answer = ask(server, "/v1/score", name, text_1=firsts, text_2=seconds).json
    assert answer["object"] == "list"
    found = [item["score"] for item in answer["data"]]
    assert np.abs(np.array(found) - np.ravel(SENTENCES["pairs"][name])).max() < BOUND
    assert ask(server, "/score", name, queries=firsts, documents=seconds).json["data"] == answer["data"]


@pytest.mark.spec("MOD-90")
@pytest.mark.parametrize("name", ["bert, classes", "nomic_bert, scores"])
def test_scores_of_several_labels_for_pairs_are_those_of_sentence_transformers(tmp_path, name):
    loaded = load_model(write_encoder(tmp_path, CASES[name]), threads=1)
    tokenizer = build_tokenizer(loaded.metadata)
    assert loaded.scores is not None
    before, between, after = loaded.scores.pair
    for pair, wanted in zip(PAIRS, SENTENCES["pairs"][name], strict=True):
        first, second = (tokenizer.encode(text) for text in pair)
        total = HiddenSum(loaded.model.spec.pooling)
        total.add(whole_hidden(loaded.model, [*before, *first, *between, *second, *after])[0])
        scores = activated(total.embedding(), loaded.scores.activation)
        assert max(abs(score - each) for score, each in zip(scores, wanted, strict=True)) < BOUND


@pytest.mark.spec("API-170")
def test_documents_are_ranked_by_their_scores(server):
    answer = rerank(server, ONE[0]).json
    scores = {r["index"]: r["relevance_score"] for r in answer["results"]}
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    assert [r["document"]["text"] for r in answer["results"]] == [["w8 w8 w40 w12", "w3", "w77 w78"][i] for i in scores]
    alone = ask(server, "/v1/score", ONE[0], text_1="w5 w9 w31", text_2=["w8 w8 w40 w12", "w3", "w77 w78"]).json["data"]
    assert [item["score"] for item in alone] == [scores[i] for i in range(3)]
    assert answer["usage"]["prompt_tokens"] == answer["meta"]["tokens"]["input_tokens"] == 3 * 6 + 7
    best = rerank(server, ONE[0], "/v2/rerank", top_n=1, return_documents=False).json["results"]
    assert best == [{k: v for k, v in answer["results"][0].items() if k != "document"}]
    objects = rerank(
        server, ONE[0], "/rerank", documents=[{"text": "w8 w8 w40 w12"}, {"text": "w3"}, {"text": "w77 w78"}]
    )
    assert objects.json["results"] == answer["results"]


@pytest.mark.spec("API-171")
def test_a_score_among_many_has_the_same_bits_as_alone(server):
    documents = [" ".join(f"w{3 + (7 * n + i) % 90}" for i in range(n % 13 + 1)) for n in range(40)]
    together = rerank(server, ONE[1], documents=documents).json["results"]
    for result in together[::9]:
        alone = rerank(server, ONE[1], documents=[documents[result["index"]]]).json["results"]
        assert alone[0]["relevance_score"] == result["relevance_score"]


@pytest.mark.spec("API-170")
def test_the_numbers_of_a_head_are_shown_as_they_are(server):
    raw = rerank(server, ONE[0], use_activation=False).json["results"]
    shown = rerank(server, ONE[0]).json["results"]
    for one, other in zip(raw, shown, strict=True):
        assert abs(1 / (1 + np.exp(-one["relevance_score"])) - other["relevance_score"]) < 1e-12


@pytest.mark.spec("API-170")
def test_an_encoder_without_a_head_scores_by_the_cosine(server):
    def vector(text, kind):
        answer = ask(server, "/v1/embeddings", "prompts", input=text, input_type=kind)
        return np.array(answer.json["data"][0]["embedding"])

    answer = ask(server, "/v1/score", "prompts", text_1=["w5", "w9"], text_2=["w5 w6", "w7"]).json["data"]
    for item, first, second in zip(answer, ("w5", "w9"), ("w5 w6", "w7"), strict=True):
        assert abs(item["score"] - vector(first, "query") @ vector(second, "document")) < 1e-6
    single = ask(server, "/v1/score", "prompts", text_1="w5", text_2=["w5 w6", "w7"]).json["data"]
    assert single[0]["score"] == answer[0]["score"]


@pytest.mark.spec("API-172")
def test_a_text_gets_a_probability_for_each_label(server, tmp_path):
    answer = ask(server, "/v1/classify", "bert, classes", input=TEXTS).json
    loaded = load_model(write_encoder(tmp_path, CASES["bert, classes"]), threads=1)
    tokenizer = build_tokenizer(loaded.metadata)
    for item, text in zip(answer["data"], TEXTS, strict=True):
        total = HiddenSum(loaded.model.spec.pooling)
        total.add(whole_hidden(loaded.model, [0, *tokenizer.encode(text), 2])[0])
        assert item["probs"] == activated(total.embedding(), "softmax")
        assert item["label"] == f"LABEL_{int(np.argmax(item['probs']))}"
        assert item["num_classes"] == 3
    raw = ask(server, "/classify", "bert, classes", input=TEXTS[0], use_activation=False).json["data"][0]["probs"]
    assert abs(sum(raw) - 1) > 0.01


@pytest.mark.spec("API-173")
def test_the_forms_of_text_embeddings_inference_are_served(server):
    texts = ["w8 w8 w40 w12", "w3"]
    ranked = ask(server, "/rerank", ONE[0], query="w5 w9 w31", texts=texts, return_text=True).json
    same = rerank(server, ONE[0], documents=texts).json["results"]
    assert ranked == [{"index": r["index"], "score": r["relevance_score"], "text": r["document"]["text"]} for r in same]
    bare = ask(server, "/embed", "prompts", inputs=texts, prompt_name="query").json
    data = ask(server, "/v1/embeddings", "prompts", input=texts, prompt_name="query").json["data"]
    assert bare == [item["embedding"] for item in data]


@pytest.mark.spec("API-174")
def test_a_pair_that_is_too_long_is_refused_unless_the_request_cuts_it(server):
    long = " ".join(["w8"] * 80)
    answer = rerank(server, ONE[1], documents=["w3", long])
    assert (answer.status, answer.json["error"]["param"]) == (400, "documents[1]")
    assert answer.json["error"]["code"] == "context_length_exceeded"
    cut = " ".join(["w8"] * 5)
    whole = rerank(server, ONE[1], documents=["w3", cut]).json["results"]

    def scores(**fields):
        found = rerank(server, ONE[1], documents=["w3", long], **fields).json["results"]
        return [(r["index"], r["relevance_score"]) for r in found]

    assert scores(max_tokens_per_doc=5) == [(r["index"], r["relevance_score"]) for r in whole]
    assert scores(truncate_prompt_tokens=12) == scores(max_tokens_per_doc=5)
    most = " ".join(["w8"] * (70 - 4 - 3))
    fitted = rerank(server, ONE[1], documents=["w3", most]).json["results"]
    assert scores(truncate_prompt_tokens=-1) == [(r["index"], r["relevance_score"]) for r in fitted]
    query = rerank(server, ONE[1], query=long, truncate_prompt_tokens=-1)
    assert query.json["error"]["param"] == "query"
    text = ask(server, "/v1/classify", "bert, classes", input=long)
    assert text.json["error"]["param"] == "input"
    assert ask(server, "/v1/classify", "bert, classes", input=long, truncate_prompt_tokens=-1).status == 200


@pytest.mark.spec("API-175")
@pytest.mark.parametrize(
    ("path", "fields", "status", "param"),
    [
        ("/v1/rerank", {"query": "w3"}, 400, "documents"),
        ("/v1/rerank", {"documents": ["w3"]}, 400, "query"),
        ("/v1/rerank", {"query": "", "documents": ["w3"]}, 400, "query"),
        ("/v1/rerank", {"query": "w3", "documents": []}, 400, "documents"),
        ("/v1/rerank", {"query": "w3", "documents": ["w3", ""]}, 400, "documents[1]"),
        ("/v1/rerank", {"query": "w3", "documents": ["w3"] * 2049}, 400, "documents"),
        ("/v1/rerank", {"query": "w3", "documents": ["w3"], "top_n": 0}, 400, "top_n"),
        (
            "/v1/rerank",
            {"query": "w3", "documents": ["w3"], "truncate_prompt_tokens": 0},
            400,
            "truncate_prompt_tokens",
        ),
        ("/v1/rerank", {"query": "w3", "documents": ["w3"], "rank_fields": ["a"]}, 422, "rank_fields"),
        ("/rerank", {"query": "w3", "texts": ["w3"], "truncation_direction": "left"}, 422, "truncation_direction"),
        ("/v1/score", {"text_1": "w3"}, 400, "text_2"),
        ("/v1/score", {"text_1": "w3", "queries": "w3", "text_2": "w3"}, 400, "queries"),
        ("/v1/score", {"text_1": ["w3", "w4"], "text_2": ["w3"]}, 400, "text_2"),
        ("/v1/classify", {"input": "w3"}, 422, None),
        ("/embed", {"inputs": "w3"}, 422, "model"),
    ],
)
def test_a_wrong_body_is_refused_by_its_field(server, path, fields, status, param):
    model = ONE[0]
    answer = ask(server, path, model, **fields)
    if param is None:  # one label is a class too
        assert answer.status == 200
        return
    assert (answer.status, answer.json["error"]["param"]) == (status, param)


@pytest.mark.spec("API-175")
@pytest.mark.parametrize(
    ("path", "model", "fields", "words"),
    [
        ("/v1/rerank", "bert, classes", {"query": "w3", "documents": ["w3"]}, "scores 3 labels"),
        ("/v1/classify", "prompts", {"input": "w3"}, "has no labels"),
        ("/v1/embeddings", "bert, classes", {"input": "w3"}, "does not make embeddings"),
        ("/v1/completions", "bert, classes", {"prompt": "w3"}, "makes scores and no text"),
    ],
)
def test_a_model_that_cannot_answer_is_refused_by_name(server, path, model, fields, words):
    answer = ask(server, path, model, **fields)
    assert (answer.status, answer.json["error"]["param"]) == (422, "model")
    assert words in answer.json["error"]["message"]


@pytest.mark.spec("API-175")
def test_unknown_fields_are_named_or_refused(server):
    fields = {"model": ONE[0], "query": "w3", "documents": ["w3"], "return_metadata": True}
    assert post(server.address, "/v1/rerank", fields).headers["x-tl-ignored"] == "return_metadata"
    strict = post(server.address, "/v1/rerank", fields, **{"X-TL-Strict": "1"})
    assert strict.json["error"]["param"] == "return_metadata"
    assert ONE[0] in {card["id"] for card in get(server.address, "/v1/models").json["data"]}


@pytest.mark.spec("API-171")
def test_a_head_gives_the_scores_of_its_node(server, tmp_path):
    path = str(write_encoder(tmp_path, CASES[ONE[0]]))
    key = {"fleet.internal_key": "only-for-this-fleet-7"}
    with (
        serve_in_thread(path, settings={"fleet.internal": True, **key}) as node,
        serve_in_thread(path, settings={"fleet.nodes": f"http://{node.address}", **key}) as head,
    ):
        ends_s = time.monotonic() + 20
        while get(head.health_address, "/readyz").status != 200:
            assert time.monotonic() < ends_s
        answer = post(head.address, "/v1/rerank", {"query": "w5 w9", "documents": ["w8", "w3 w4"]})
        assert (
            answer.json["results"] == rerank(server, ONE[0], query="w5 w9", documents=["w8", "w3 w4"]).json["results"]
        )
        classes = post(head.address, "/v1/classify", {"input": "w5"}).json["data"]
        assert classes == ask(server, "/v1/classify", ONE[0], input="w5").json["data"]


@pytest.mark.spec("API-170", "MOD-92")
def test_a_reranker_that_answers_yes_or_no_reads_a_pair_as_its_card_says(tmp_path):
    case = CASES["qwen3, answers"]
    path = write_encoder(tmp_path, case, classifier_from_token=["w11", "w9"], max_position_embeddings=128)
    loaded = load_model(path, threads=1)
    tokenizer = build_tokenizer(loaded.metadata)
    assert loaded.scores is not None
    assert loaded.scores.around is not None
    before, first, between, after = loaded.scores.around
    assert before.startswith("<|im_start|>system\nJudge whether")
    assert after.endswith("<think>\n\n</think>\n\n")
    whole = tokenizer.encode_with_specials(before)
    whole += tokenizer.encode(f"{first}w5 w9{between}w8 w3")
    ids = [*whole, *tokenizer.encode_with_specials(after)]
    engine, vectors = Engine(loaded.model, EngineConfig(kv_blocks=64)), []
    engine.add_embedding(ids)
    while engine.has_work:
        vectors += [event.what.vector for event in engine.step() if isinstance(event.what, EmbeddingReady)]
    with serve_in_thread(str(path)) as running:
        answer = post(running.address, "/v1/rerank", {"query": "w5 w9", "documents": ["w3", "w8 w3"]}).json
        assert {r["index"]: r["relevance_score"] for r in answer["results"]}[1] == activated(vectors[0], "sigmoid")[0]
        long = {"query": "w5 w9", "documents": [" ".join(["w8"] * 60)]}
        assert post(running.address, "/v1/rerank", long).json["error"]["param"] == "documents[0]"
        cut = post(running.address, "/v1/rerank", {**long, "max_tokens_per_doc": 3}).json
        same = post(running.address, "/v1/rerank", {"query": "w5 w9", "documents": ["w8 w8 w8"]}).json
        assert cut["results"][0]["relevance_score"] == same["results"][0]["relevance_score"]
        assert post(running.address, "/v1/completions", {"prompt": "w3"}).status == 422
