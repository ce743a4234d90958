"""The documents have the official client's types; a chunk is a small part of the same document."""

import base64
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tlserve.api.answers import AnswerHead, Extras, Usage
from tlserve.chat.logprob_entries import LogprobEntry, TokenChoice
from tlserve.chat.output.deltas import Answer, Delta
from tlserve.generation import Finish
from tlserve.openai.chunks import chat_chunks, completion_chunks
from tlserve.openai.documents import (
    ModelCard,
    chat_document,
    completion_document,
    detokenize_document,
    embeddings_document,
    input_tokens_document,
    model_document,
    models_document,
    tokenize_document,
    usage_fields,
)

HEAD = AnswerHead(id='a"b', created=5, model="m", system_fingerprint="fp")
USAGE = Usage(prompt=3, completion=2, cached=1)
ENTRY = LogprobEntry(TokenChoice(1, b"\xc3", -0.5), (TokenChoice(2, b"x", -1.5),))


@pytest.mark.spec("API-105")
@pytest.mark.parametrize("finish", Finish)
@pytest.mark.parametrize("with_logprobs", [True, False])
def test_the_official_type_accepts_a_chat_completion(finish: Finish, with_logprobs: bool) -> None:
    answer = Answer(content="hi", logprobs=(ENTRY,), finish=finish)
    parsed = ChatCompletion.model_validate_json(chat_document(HEAD, [answer], USAGE, with_logprobs), strict=True)
    choice = parsed.choices[0]
    assert (choice.message.content, choice.finish_reason, parsed.system_fingerprint) == ("hi", finish.value, "fp")
    assert parsed.usage is not None
    assert parsed.usage.prompt_tokens_details is not None
    assert (parsed.usage.total_tokens, parsed.usage.prompt_tokens_details.cached_tokens) == (5, 1)
    assert (choice.logprobs is not None) == with_logprobs


def test_requested_logprobs_are_present_even_without_a_token() -> None:
    document = json.loads(chat_document(HEAD, [Answer(finish=Finish.STOP)], USAGE, True))
    assert document["choices"][0]["logprobs"] == {"content": [], "refusal": None}


def test_the_official_type_accepts_a_completion() -> None:
    answer = Answer(content="hi", finish=Finish.LENGTH)
    parsed = Completion.model_validate_json(completion_document(HEAD, [answer, answer], USAGE), strict=True)
    assert (parsed.choices[1].text, parsed.choices[1].finish_reason) == ("hi", "length")
    assert [choice.index for choice in parsed.choices] == [0, 1]


@pytest.mark.spec("API-105")
@given(st.text(), st.sampled_from([None, *Finish]), st.booleans())
def test_every_chat_chunk_is_one_line_that_the_official_type_accepts(
    text: str, finish: Finish | None, include_usage: bool
) -> None:
    chunks = chat_chunks(HEAD, include_usage)
    line = chunks.piece(Delta(content=text, finish=finish, logprobs=(ENTRY,) if finish else ()))
    assert b"\n" not in line
    assert b"\r" not in line
    parsed = ChatCompletionChunk.model_validate_json(line, strict=True)
    assert parsed.choices[0].delta.content == text
    assert parsed.choices[0].finish_reason == (finish.value if finish else None)
    assert (parsed.choices[0].logprobs is None) == (finish is None)
    assert ("usage" in json.loads(line)) == include_usage


def test_the_first_and_the_last_chunk_of_a_chat_are_role_and_usage() -> None:
    chunks = chat_chunks(HEAD, include_usage=True)
    role = ChatCompletionChunk.model_validate_json(chunks.opening() or b"", strict=True)
    last = ChatCompletionChunk.model_validate_json(chunks.usage(USAGE), strict=True)
    assert (role.choices[0].delta.role, role.choices[0].delta.content, role.usage) == ("assistant", "", None)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 2


def test_a_completion_has_chunks_of_text_and_no_role() -> None:
    chunks = completion_chunks(HEAD, include_usage=False)
    assert chunks.opening() is None
    parsed = Completion.model_validate_json(chunks.piece(Delta(content="é", finish=Finish.STOP)), strict=True)
    assert (parsed.object, parsed.choices[0].text, parsed.choices[0].finish_reason) == ("text_completion", "é", "stop")


EXTRAS = Extras(token_ids=(5, 6), prompt_token_ids=(7,), prompt_logprobs=(ENTRY,))


def test_fields_beyond_the_public_api_are_in_the_chat_and_its_choices() -> None:
    answer = Answer(content="hi", finish=Finish.STOP)
    document = json.loads(chat_document(HEAD, [answer, answer], USAGE, False, [EXTRAS, EXTRAS]))
    assert [choice["token_ids"] for choice in document["choices"]] == [[5, 6], [5, 6]]
    assert (document["prompt_token_ids"], len(document["prompt_logprobs"])) == ([7], 1)
    plain = json.loads(chat_document(HEAD, [answer], USAGE, False))
    assert not {"prompt_token_ids", "prompt_logprobs", "token_ids"} & {*plain, *plain["choices"][0]}
    ChatCompletion.model_validate(document)


def test_fields_beyond_the_public_api_are_in_the_choices_of_completions() -> None:
    answer = Answer(content="hi", finish=Finish.STOP, logprobs=(ENTRY,))
    document = json.loads(completion_document(HEAD, [answer], USAGE, True, [EXTRAS]))
    (choice,) = document["choices"]
    assert (choice["token_ids"], choice["prompt_token_ids"], len(choice["prompt_logprobs"])) == ([5, 6], [7], 1)
    assert choice["logprobs"]["text_offset"] == [0]
    Completion.model_validate(document)


@pytest.mark.parametrize("include_usage", [True, False])
def test_a_chunk_can_have_ids_and_the_usage_so_far(include_usage: bool) -> None:
    extras = Extras(token_ids=(5,), prompt_token_ids=(7, 8))
    chat, text = chat_chunks(HEAD, include_usage), completion_chunks(HEAD, include_usage)
    opening = json.loads(chat.opening(0, extras, USAGE) or b"")
    assert (opening["prompt_token_ids"], opening["usage"]) == ([7, 8], usage_fields(USAGE))
    for delta in (Delta(content="x"), Delta(reasoning="r"), Delta(content="x", finish=Finish.STOP, logprobs=(ENTRY,))):
        piece = json.loads(chat.piece(delta, 0, Extras(token_ids=(5,)), USAGE))
        assert (piece["choices"][0]["token_ids"], piece["usage"]) == ([5], usage_fields(USAGE))
        ChatCompletionChunk.model_validate(piece)
        unpriced = json.loads(chat.piece(delta, 0, Extras(token_ids=(5,))))
        assert unpriced.get("usage", "absent") == (None if include_usage else "absent")
    (choice,) = json.loads(text.piece(Delta(content="x", logprobs=(ENTRY,)), 0, extras))["choices"]
    assert (choice["token_ids"], choice["prompt_token_ids"], choice["logprobs"]["tokens"]) == (
        [5],
        [7, 8],
        [r"bytes:\xc3"],
    )


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=9))
def test_both_encodings_of_a_vector_hold_the_same_numbers(vector: list[float]) -> None:
    array = np.array(vector, np.float32)
    plain, packed = (
        json.loads(embeddings_document(model="m", vectors=[array], as_base64=as_base64, prompt_tokens=1))
        for as_base64 in (False, True)
    )
    CreateEmbeddingResponse.model_validate(plain)
    values = struct.unpack(f"<{len(vector)}f", base64.b64decode(packed["data"][0]["embedding"]))
    assert list(values) == plain["data"][0]["embedding"] == vector


def test_a_model_says_its_context_and_whether_it_is_loaded() -> None:
    card = ModelCard(
        id="m", created=1, root="m", n_ctx=64, loaded=True, state="loaded", capabilities={"backend": "local"}
    )
    document = json.loads(model_document(card))
    assert document == {
        "id": "m",
        "object": "model",
        "created": 1,
        "capabilities": {"backend": "local"},
        "owned_by": "tlserve",
        "root": "m",
        "n_ctx": 64,
        "max_model_len": 64,
        "loaded": True,
        "state": "loaded",
    }
    Model.model_validate(document)
    assert json.loads(models_document([card])) == {"object": "list", "data": [document]}


@pytest.mark.parametrize("choice", [0, 3])
def test_a_chunk_carries_the_index_of_its_choice(choice: int) -> None:
    for chunks in (chat_chunks(HEAD, False), completion_chunks(HEAD, False)):
        pieces = [chunks.piece(Delta(content="x"), choice), chunks.opening(choice)]
        assert {json.loads(piece)["choices"][0]["index"] for piece in pieces if piece is not None} == {choice}


def test_detokenize_and_the_count_of_input_tokens_are_small_objects() -> None:
    assert json.loads(detokenize_document("a")) == {"text": "a"}
    assert json.loads(input_tokens_document(3)) == {"object": "response.input_tokens", "input_tokens": 3}


def test_tokenize_gives_the_ids_and_their_count() -> None:
    assert json.loads(tokenize_document((5, 6), max_model_len=9)) == {"tokens": [5, 6], "count": 2, "max_model_len": 9}
