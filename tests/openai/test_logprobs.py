"""Log-probabilities in the three forms of the API."""

import json

import attrs
import pytest
from openai.types.chat.chat_completion import ChoiceLogprobs
from openai.types.completion_choice import Logprobs

from tlserve.chat.logprob_entries import LogprobEntry, TokenChoice
from tlserve.openai.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs

FIRST = LogprobEntry(TokenChoice(7, b"Say ", None))
WHOLE = LogprobEntry(TokenChoice(8, "é".encode(), -2.0), (TokenChoice(9, b"a", -0.5), TokenChoice(3, b"b", -1.0)), 4)
PART = LogprobEntry(TokenChoice(1, b"\xf0\x9f", -0.25), (TokenChoice(1, b"\xf0\x9f", -0.25),), 5)


def test_chat_has_raw_bytes_and_the_likeliest_tokens_of_each() -> None:
    document = chat_logprobs([WHOLE, PART])
    parsed = ChoiceLogprobs.model_validate_json(json.dumps(document), strict=True)
    assert parsed.content is not None
    assert [entry.bytes for entry in parsed.content] == [[0xC3, 0xA9], [0xF0, 0x9F]]
    assert [entry.token for entry in parsed.content] == ["é", "\ufffd"]
    assert [top.token for top in parsed.content[0].top_logprobs] == ["a", "b"]


@pytest.mark.spec("API-158")
def test_tokens_by_id_are_the_same_in_both_forms_and_keep_their_bytes() -> None:
    entry = attrs.evolve(WHOLE, by_id=True)
    completion, chat = completion_logprobs([entry]), chat_logprobs([entry])
    assert completion is not None
    assert chat is not None
    assert completion["tokens"] == ["token_id:8"]
    assert completion["top_logprobs"] == [{"token_id:9": -0.5, "token_id:3": -1.0, "token_id:8": -2.0}]
    (shown,) = chat["content"]
    assert (shown["token"], shown["bytes"]) == ("token_id:8", [0xC3, 0xA9])
    assert [top["token"] for top in shown["top_logprobs"]] == ["token_id:9", "token_id:3"]


@pytest.mark.spec("API-65", "API-132")
def test_completions_have_lists_with_the_token_among_the_likeliest() -> None:
    document = completion_logprobs([WHOLE, PART])
    assert document == {
        "tokens": ["é", r"bytes:\xf0\x9f"],
        "token_logprobs": [-2.0, -0.25],
        "top_logprobs": [{"a": -0.5, "b": -1.0, "é": -2.0}, {r"bytes:\xf0\x9f": -0.25}],
        "text_offset": [4, 5],
    }
    Logprobs.model_validate_json(json.dumps(document), strict=True)


@pytest.mark.spec("API-133")
def test_the_first_token_of_an_echoed_prompt_has_null() -> None:
    document = completion_logprobs([FIRST, WHOLE])
    assert document is not None
    assert (document["token_logprobs"], document["top_logprobs"][0]) == ([None, -2.0], None)


@pytest.mark.spec("API-132")
def test_of_tokens_with_the_same_text_the_likelier_is_given() -> None:
    entry = LogprobEntry(TokenChoice(5, b"a", -3.0), (TokenChoice(9, b"a", -0.5), TokenChoice(6, b"a", -1.0)))
    document = completion_logprobs([entry])
    assert document is not None
    assert (document["token_logprobs"], document["top_logprobs"]) == ([-3.0], [{"a": -0.5}])


@pytest.mark.spec("API-66", "API-134")
def test_a_prompt_has_null_first_and_then_the_likelihoods_by_id_with_ranks() -> None:
    assert prompt_logprobs([FIRST, WHOLE, PART]) == [
        None,
        {
            "8": {"logprob": -2.0, "rank": None, "decoded_token": "é"},
            "9": {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
            "3": {"logprob": -1.0, "rank": 2, "decoded_token": "b"},
        },
        {"1": {"logprob": -0.25, "rank": 1, "decoded_token": "\ufffd"}},
    ]


@pytest.mark.parametrize("form", [chat_logprobs, completion_logprobs])
def test_fields_that_were_not_requested_are_null(form) -> None:
    assert form(None) is None
