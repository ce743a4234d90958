"""Completions, embeddings, tokenize, models, healthz."""

import base64
import json
import struct
from types import MappingProxyType
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from openai.types import Completion, CreateEmbeddingResponse, Model

from tests.kit.scripted_backend import INFO, Script, ScriptedBackend
from tests.kit.served_succ import SUCC
from tlserve import __version__
from tlserve.chat.served_model import Catalogue, Served
from tlserve.config.tables.network import HttpSettings
from tlserve.errors import ClientError
from tlserve.text.byte_tokenizer import ByteTokenizer

# --- completions --------------------------------------------------------------------------------------------------


async def test_a_completion_has_sixteen_tokens_by_default_and_its_usage(open_api) -> None:
    async with open_api() as api:
        answer = await api.post("/v1/completions", {"model": "succ", "prompt": "a"})
    document = json.loads(answer.body)
    assert document["object"] == "text_completion"
    assert document["choices"] == [
        {"index": 0, "text": "bcdefghijklmnopq", "logprobs": None, "finish_reason": "length"}
    ]
    assert document["usage"]["prompt_tokens"] == 1
    assert document["usage"]["completion_tokens"] == 16
    Completion.model_validate_json(answer.body, strict=True)


async def test_a_completion_takes_what_fits_when_sixteen_do_not(open_api) -> None:
    backend = ScriptedBackend()
    async with open_api(backend) as api:
        answer = await api.post("/v1/completions", {"model": "succ", "prompt": "a" * 60})
    assert (answer.status, backend.requests[0].max_tokens) == (200, 4)


@pytest.mark.spec("API-24")
async def test_a_streamed_completion_has_no_role_and_joins_to_the_same_text(open_api) -> None:
    body = {"model": "succ", "prompt": [97], "stream": True, "stream_options": {"include_usage": True}}
    async with open_api() as api:
        answer = await api.post("/v1/completions", body)
    *events, done, end = answer.body.decode().split("\n\n")
    documents = [json.loads(event.removeprefix("data: ")) for event in events]
    Completion.model_validate(documents[-2])  # the official type has no null, which public streams have before the end
    assert [document["choices"][0]["finish_reason"] for document in documents[:-2]] == [None] * 15
    assert (done, end) == ("data: [DONE]", "")
    assert "".join(choice["text"] for document in documents for choice in document["choices"]) == "bcdefghijklmnopq"
    assert documents[-2]["choices"][0]["finish_reason"] == "length"
    assert (documents[-1]["choices"], documents[-1]["usage"]["total_tokens"]) == ([], 17)


@pytest.mark.parametrize(
    ("prompt", "code"),
    [("", None), ([256], None), ("a" * 64, "context_length_exceeded"), ([1] * 65, "context_length_exceeded")],
)
async def test_a_prompt_that_cannot_be_continued_is_400(open_api, prompt: Any, code: str | None) -> None:
    async with open_api() as api:
        answer = await api.post("/v1/completions", {"model": "succ", "prompt": prompt})
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["param"], error["code"]) == (400, "prompt", code)


@pytest.mark.spec("API-17")
@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "status"), [(63, 1, 200), (63, 2, 400), (1, 63, 200), (1, 64, 400)]
)
async def test_prompt_and_answer_must_fit_the_context_together(
    open_api, prompt_tokens: int, max_tokens: int, status: int
) -> None:
    async with open_api() as api:
        body = {"model": "succ", "prompt": "a" * prompt_tokens, "max_tokens": max_tokens}
        answer = await api.post("/v1/completions", body)
    assert answer.status == status
    if status == 400:
        error = json.loads(answer.body)["error"]
        assert (error["param"], error["code"]) == ("max_tokens", "context_length_exceeded")
        assert all(str(number) in error["message"] for number in (prompt_tokens, max_tokens, 64))


class SpecialTokenizer(ByteTokenizer):
    """A byte tokenizer in which "<|x|>" spells the control token 7."""

    special_tokens = MappingProxyType({"<|x|>": 7})

    def encode_with_specials(self, text: str, *, origin: str = "") -> list[int]:
        head, special, tail = text.partition("<|x|>")
        return [*self.encode(head), *([7] if special else []), *self.encode(tail)]


@pytest.mark.spec("API-12")
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/tokenize"])
async def test_raw_text_spells_control_tokens_only_with_that_header(open_api, route: str) -> None:
    backend = ScriptedBackend()
    body = {"model": "succ", "prompt": "a<|x|>"}
    async with open_api(backend, tokenizer=SpecialTokenizer()) as api:
        plain = await api.post(route, body)
        special = await api.post(route, body, ("X-TL-Special-Tokens", "1"))
    expected = [list(b"a<|x|>"), [97, 7]]
    if route == "/v1/tokenize":
        assert [json.loads(answer.body)["tokens"] for answer in (plain, special)] == expected
    else:
        assert [list(request.prompt) for request in backend.requests] == expected


# --- embeddings -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-20")
async def test_embeddings_come_in_the_order_of_the_inputs_with_their_usage(open_api) -> None:
    async with open_api() as api:
        answer = await api.post("/v1/embeddings", {"model": "succ", "input": ["a", "bb"]})
    document = json.loads(answer.body)
    assert [(item["index"], item["embedding"]) for item in document["data"]] == [(0, [0, 1, 0, 0]), (1, [0, 0, 1, 0])]
    assert document["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    CreateEmbeddingResponse.model_validate(document)


@pytest.mark.spec("CASE-27", "API-20")
async def test_base64_is_little_endian_float32_of_the_same_values(open_api) -> None:
    body = {"model": "succ", "input": "abcdd"}
    async with open_api() as api:
        plain = json.loads((await api.post("/v1/embeddings", {**body, "encoding_format": "float"})).body)
        packed = json.loads((await api.post("/v1/embeddings", {**body, "encoding_format": "base64"})).body)
    values = struct.unpack("<4f", base64.b64decode(packed["data"][0]["embedding"]))
    assert list(values) == plain["data"][0]["embedding"]
    assert sum(value * value for value in values) == pytest.approx(1)


@pytest.mark.spec("CASE-27", "API-108")
@pytest.mark.parametrize(("dimensions", "status"), [(4, 200), (5, 400), (3, 422), (None, 200)])
async def test_only_the_models_own_dimensions_are_served(open_api, dimensions: int | None, status: int) -> None:
    async with open_api() as api:
        answer = await api.post("/v1/embeddings", {"model": "succ", "input": "a", "dimensions": dimensions})
    assert answer.status == status
    if status != 200:
        assert json.loads(answer.body)["error"]["param"] == "dimensions"


@pytest.mark.spec("API-107", "API-11")
@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("ab", [(97, 98)]),
        (["a", "bb"], [(97,), (98, 98)]),
        ([97, 98], [(97, 98)]),
        ([[97], [98, 99]], [(97,), (98, 99)]),
    ],
)
async def test_inputs_of_every_form_reach_the_backend_in_one_call(open_api, given: Any, inputs: Any) -> None:
    backend = ScriptedBackend()
    async with open_api(backend) as api:
        answer = await api.post("/v1/embeddings", {"model": "succ", "input": given})
    assert [list(request.inputs) for request in backend.embedding_requests] == [inputs]
    document = json.loads(answer.body)
    assert [item["index"] for item in document["data"]] == list(range(len(inputs)))
    assert document["usage"]["prompt_tokens"] == sum(map(len, inputs))


@pytest.mark.spec("API-20")
async def test_2048_inputs_are_served_and_one_more_is_refused(open_api) -> None:
    async with open_api() as api:
        answers = [
            await api.post("/v1/embeddings", {"model": "succ", "input": ["a"] * count}) for count in (2048, 2049)
        ]
    assert [answer.status for answer in answers] == [200, 400]
    assert len(json.loads(answers[0].body)["data"]) == 2048


@pytest.mark.spec("API-104")
@pytest.mark.parametrize(
    ("given", "param"),
    [("", "input"), ([], "input"), (["a", ""], "input[1]"), ([[1], []], "input[1]"), ([[256]], "input[0]")],
)
async def test_an_empty_input_or_an_unknown_id_is_400_with_its_place(open_api, given: Any, param: str) -> None:
    async with open_api() as api:
        answer = await api.post("/v1/embeddings", {"model": "succ", "input": given})
    assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, param)


@pytest.mark.spec("API-109")
@pytest.mark.parametrize(("dimensions", "status"), [(1, 422), (2, 200), (3, 200), (4, 200), (5, 400)])
async def test_a_model_trained_to_be_cut_gives_shorter_unit_vectors(open_api, dimensions: int, status: int) -> None:
    body = {"model": "succ", "input": "abbccc"}
    async with open_api(min_dimensions=2) as api:
        whole = json.loads((await api.post("/v1/embeddings", body)).body)["data"][0]["embedding"]
        answer = await api.post("/v1/embeddings", {**body, "dimensions": dimensions})
        packed = await api.post("/v1/embeddings", {**body, "dimensions": dimensions, "encoding_format": "base64"})
    assert answer.status == packed.status == status
    if status == 200:
        vector = json.loads(answer.body)["data"][0]["embedding"]
        head = whole[:dimensions]
        length = sum(value * value for value in head) ** 0.5
        assert vector == pytest.approx([value / length for value in head], abs=1e-6)
        data = base64.b64decode(json.loads(packed.body)["data"][0]["embedding"])
        assert list(struct.unpack(f"<{dimensions}f", data)) == vector


async def test_a_vector_that_is_cut_to_zeros_stays_zeros(open_api) -> None:
    async with open_api(min_dimensions=1) as api:
        answer = await api.post("/v1/embeddings", {"model": "succ", "input": "a", "dimensions": 1})
    assert json.loads(answer.body)["data"][0]["embedding"] == [0]


@pytest.mark.spec("API-20")
@pytest.mark.parametrize("encoding", ["float", "base64", None])
async def test_every_encoding_format_and_null_is_served(open_api, encoding: str | None) -> None:
    async with open_api() as api:
        answer = await api.post("/v1/embeddings", {"model": "succ", "input": "a", "encoding_format": encoding})
    assert isinstance(json.loads(answer.body)["data"][0]["embedding"], str if encoding == "base64" else list)


@pytest.mark.spec("API-20")
async def test_an_unknown_encoding_format_is_400(open_api) -> None:
    async with open_api() as api:
        answer = await api.post("/v1/embeddings", {"model": "succ", "input": "a", "encoding_format": "x"})
    assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, "encoding_format")


async def test_an_input_past_the_context_is_refused_by_its_place(open_api) -> None:
    async with open_api() as api:
        answer = await api.post("/v1/embeddings", {"model": "succ", "input": ["a", "b" * 65]})
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"], error["param"]) == (400, "context_length_exceeded", "input[1]")
    assert "input[1] has 65 characters" in error["message"]


# --- tokenize ----------------------------------------------------------------------------------------------------------


class BosTokenizer(ByteTokenizer):
    """A byte tokenizer with a BOS."""

    bos_id = 1
    add_bos = True


class SpecialBosTokenizer(SpecialTokenizer):
    """A byte tokenizer with a BOS in which "<|x|>" spells the control token 7."""

    bos_id = 1
    add_bos = True


@pytest.mark.spec("API-21")
@pytest.mark.parametrize(("fields", "tokens"), [({}, [1, 97]), ({"add_special_tokens": False}, [97])])
async def test_tokenize_gives_ids_and_count_with_bos_by_default(
    open_api, fields: dict[str, Any], tokens: list[int]
) -> None:
    async with open_api(tokenizer=BosTokenizer()) as api:
        answer = await api.post("/v1/tokenize", {"model": "succ", "text": "a", **fields})
    assert json.loads(answer.body) == {"tokens": tokens, "count": len(tokens), "max_model_len": 64}


@pytest.mark.spec("API-161", "API-162")
@pytest.mark.parametrize("path", ["/v1/tokenize", "/tokenize"])
@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"prompt": "a<|x|>"}, [1, *b"a<|x|>"]),
        ({"prompt": "a<|x|>", "parse_special": True, "add_special_tokens": False}, [97, 7]),
        ({"content": "a<|x|>"}, [97, 7]),
        ({"content": "a<|x|>", "parse_special": False, "add_special": True}, [1, *b"a<|x|>"]),
    ],
)
async def test_tokenize_reads_the_inputs_of_other_servers(
    open_api, path: str, fields: dict[str, Any], tokens: list[int]
) -> None:
    async with open_api(tokenizer=SpecialBosTokenizer()) as api:
        answer = await api.post(path, fields)
    assert json.loads(answer.body)["tokens"] == tokens


@pytest.mark.spec("API-161")
async def test_the_ids_of_a_chat_are_those_of_its_prompt(open_api) -> None:
    messages = [{"role": "user", "content": "aa"}]
    async with open_api(tokenizer=BosTokenizer()) as api:
        chat = json.loads((await api.chat("aa", return_token_ids=True)).body)
        answer = await api.post("/tokenize", {"messages": messages, "return_token_strs": True, "zz": 1})
    document = json.loads(answer.body)
    assert document["tokens"] == chat["prompt_token_ids"]
    assert document["count"] == len(document["token_strs"]) == len(document["tokens"])
    assert document["token_strs"][-1] == chr(document["tokens"][-1])
    assert answer.headers.get("x-tl-ignored") == "zz"


@pytest.mark.spec("API-151")
async def test_a_chat_above_the_limit_is_not_tokenized(open_api) -> None:
    async with open_api(settings=HttpSettings(max_tokenize_characters=100)) as api:
        answer = await api.post("/tokenize", {"messages": [{"role": "user", "content": "x" * 101}]})
    assert answer.status == 413


async def test_tokenize_accepts_a_large_text(open_api) -> None:
    async with open_api() as api:
        answer = await api.post("/v1/tokenize", {"model": "succ", "text": "é" * 50_000})
    assert json.loads(answer.body)["count"] == 100_000


# --- detokenize, input tokens ------------------------------------------------------------------------------------------


class SpelledTokenizer(SpecialTokenizer):
    """A byte tokenizer whose control token 7 has no text, and is spelled "<|x|>"."""

    def token_bytes(self, token: int) -> bytes:
        return b"" if token == 7 else super().token_bytes(token)

    def token_spelling(self, token: int) -> bytes:
        return b"<|x|>" if token == 7 else super().token_spelling(token)


@pytest.mark.spec("API-110")
@pytest.mark.parametrize(
    ("tokens", "text"), [([], ""), ([97, 98], "ab"), ([97, 7], "a<|x|>"), ([0xC3, 0xA9], "é"), ([0xC3], "\ufffd")]
)
async def test_detokenize_spells_every_id_including_control_tokens(open_api, tokens: list[int], text: str) -> None:
    async with open_api(tokenizer=SpelledTokenizer()) as api:
        answer = await api.post("/v1/detokenize", {"model": "succ", "tokens": tokens})
        others = await api.post("/detokenize", {"tokens": tokens})
    assert json.loads(answer.body) == {"text": text}
    assert json.loads(others.body) == {"prompt": text, "content": text}


@pytest.mark.spec("API-42")
async def test_an_echo_of_token_ids_is_their_text(open_api) -> None:
    async with open_api(tokenizer=SpelledTokenizer()) as api:
        body = {"model": "succ", "prompt": [7, 97], "echo": True, "max_tokens": 1}
        answer = await api.post("/v1/completions", body)
    assert json.loads(answer.body)["choices"][0]["text"] == "ab"


async def test_an_id_outside_the_vocabulary_is_not_detokenized(open_api) -> None:
    async with open_api() as api:
        answer = await api.post("/v1/detokenize", {"model": "succ", "tokens": [1, 2**70]})
    assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, "tokens")


@pytest.mark.spec("API-111")
async def test_the_count_of_input_tokens_is_the_prompt_tokens_of_the_same_chat(open_api) -> None:
    backend = ScriptedBackend()
    async with open_api(backend, tokenizer=BosTokenizer()) as api:
        chat = await api.chat([{"type": "text", "text": "Say "}, {"type": "text", "text": "hi"}])
        body = {"model": "succ", "messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 3}
        counted = await api.post("/v1/chat/completions/input_tokens", body)
    prompt_tokens = json.loads(chat.body)["usage"]["prompt_tokens"]
    assert json.loads(counted.body) == {"object": "response.input_tokens", "input_tokens": prompt_tokens}
    assert prompt_tokens == 7
    assert len(backend.requests) == 1


# --- an encoder ---------------------------------------------------------------------------------


@pytest.mark.spec("API-44")
async def test_a_model_that_only_embeds_refuses_to_generate_by_its_name(open_api) -> None:
    body = {"model": "succ", "prompt": "a", "messages": [{"role": "user", "content": "a"}], "input": "a"}
    async with open_api(generates=False) as api:
        refused = [await api.post(path, body) for path in GENERATING]
        embedded = await api.post("/v1/embeddings", body)
    assert embedded.status == 200
    for answer in refused:
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["param"], error["code"]) == (422, "model", "unsupported_parameter")
        assert "'succ' makes embeddings" in error["message"]


@pytest.mark.spec("API-44")
async def test_a_model_without_embeddings_refuses_to_embed(open_api) -> None:
    async with open_api(embeds=False) as api:
        answer = await api.post("/v1/embeddings", {"model": "succ", "input": "a"})
    assert (answer.status, json.loads(answer.body)["error"]["param"]) == (422, "model")


GENERATING = ("/v1/chat/completions", "/v1/chat/completions/input_tokens", "/v1/completions")


# --- models and health --------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-22")
async def test_models_are_listed_under_every_name_with_their_context(open_api) -> None:
    async with open_api(aliases=("org/succ",)) as api:
        listed = json.loads((await api.get("/v1/models")).body)
        shown = json.loads((await api.get("/v1/models/org/succ")).body)
        answer = await api.chat(model="org/succ")
    for card in (shown, *listed["data"]):
        assert card.pop("capabilities")["descriptor_version"] == 1
    sizes = {"n_ctx": 64, "max_model_len": 64}
    expected = {
        "object": "model",
        "created": 1_600_000_000,
        "owned_by": "tlserve",
        **sizes,
        "loaded": True,
        "state": "loaded",
    }
    assert listed == {
        "object": "list",
        "data": [{"id": "succ", "root": "succ", **expected}, {"id": "org/succ", "root": "succ", **expected}],
    }
    assert shown == listed["data"][1]
    assert json.loads(answer.body)["model"] == "org/succ"
    Model.model_validate(shown)


@pytest.mark.spec("API-160")
@pytest.mark.parametrize("model", [{}, {"model": None}])
async def test_a_request_without_model_is_for_the_only_model(open_api, model: dict[str, None]) -> None:
    messages = [{"role": "user", "content": "a"}]
    async with open_api(aliases=("other",)) as api:
        named = [
            await api.post("/v1/chat/completions", {"messages": messages, "max_tokens": 3, **model}),
            await api.post("/v1/completions", {"prompt": "a", **model}),
            await api.post("/v1/embeddings", {"input": "a", **model}),
        ]
        others = [
            await api.post("/v1/chat/completions/input_tokens", {"messages": messages, **model}),
            await api.post("/v1/tokenize", {"text": "a", **model}),
            await api.post("/v1/detokenize", {"tokens": [97], **model}),
        ]
    assert [json.loads(answer.body)["model"] for answer in named] == ["succ"] * 3
    assert [answer.status for answer in others] == [200] * 3


@pytest.mark.spec("API-160")
def test_without_a_name_there_is_no_choice_between_several_models() -> None:
    models = [Served(**{**SUCC, "backend": ScriptedBackend(), "model_id": name}) for name in ("a", "b")]
    with pytest.raises(ClientError, match="send one of: a, b") as refused:
        Catalogue(models).pick("")
    assert refused.value.param == "model"


@pytest.mark.spec("API-22")
@pytest.mark.parametrize("path", ["/v1/models/nope", "/v1/models/nope/deeper"])
async def test_a_model_that_is_not_served_is_404_and_names_those_served(open_api, path: str) -> None:
    async with open_api() as api:
        answer = await api.get(path)
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "succ" in error["message"]


@pytest.mark.spec("API-38")
async def test_healthz_answers_on_the_api_port(open_api) -> None:
    async with open_api() as api:
        answer = await api.get("/healthz")
    assert json.loads(answer.body) == {"status": "ok", "kernels": {"succ": "none"}}


@pytest.mark.spec("API-159")
@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 503)])
async def test_health_is_503_while_a_model_is_not_ready(open_api, ready: bool, status: int) -> None:
    async with open_api(ScriptedBackend(info=attrs.evolve(INFO, ready=ready))) as api:
        answer = await api.get("/health")
    document = json.loads(answer.body)
    assert answer.status == status
    assert document == {"status": "ok"} if ready else "'succ'" in document["error"]["message"]


@pytest.mark.spec("API-159")
async def test_version_and_load_have_the_shapes_of_vllm(open_api) -> None:
    body = b'{"model":"succ","messages":[{"role":"user","content":"a"}]}'
    async with open_api(ScriptedBackend(Script(gates={0: trio.Event()}))) as api:
        assert json.loads((await api.get("/version")).body) == {"version": __version__}
        assert json.loads((await api.get("/load")).body) == {"server_load": 0}
        stream = api.server.connect_raw()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        await stream.send_all(head + body)
        await trio.testing.wait_all_tasks_blocked()
        assert json.loads((await api.get("/load")).body) == {"server_load": 1}
        await stream.aclose()


@pytest.mark.spec("API-72", "API-141")
async def test_in_a_drain_routes_without_the_backend_still_answer(open_api, nursery) -> None:
    backend = ScriptedBackend(Script(gates={0: trio.Event()}))
    body = b'{"model":"succ","messages":[{"role":"user","content":"a"}]}'
    async with open_api(backend) as api:
        stream = api.server.connect_raw()
        await stream.send_all(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        await stream.send_all(body)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(backend.drain)
        await trio.testing.wait_all_tasks_blocked()
        models = await api.get("/v1/models")
        tokens = await api.post("/v1/tokenize", {"model": "succ", "text": "a"})
        chat = await api.chat()
        nursery.cancel_scope.cancel()
    assert [models.status, tokens.status, chat.status] == [200, 200, 503]
