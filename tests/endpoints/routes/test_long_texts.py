"""Texts that are too long by their length alone are refused before they are encoded."""

import json
from typing import Any

import pytest

from tests.kit.scripted_backend import INFO
from tlserve.config.tables.network import HttpSettings
from tlserve.text.byte_tokenizer import ByteTokenizer

MOST = 3 * INFO.context_tokens


class CountingTokenizer(ByteTokenizer):
    """A byte tokenizer whose longest token has three bytes, and which counts the characters that it encodes."""

    longest_token_bytes = 3

    def __init__(self) -> None:
        self.characters = 0

    def encode(self, text: str) -> list[int]:
        self.characters += len(text)
        return super().encode(text)


def bodies(text: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (route, the name of the prompt's field, the body) of every request with a text for the model."""
    return [
        ("/v1/completions", "prompt", {"prompt": text}),
        ("/v1/completions", "prompt.1", {"prompt": ["a", text]}),
        ("/v1/chat/completions", "messages", {"messages": [{"role": "user", "content": text}]}),
        ("/v1/embeddings", "input", {"input": text}),
    ]


@pytest.mark.spec("API-150")
@pytest.mark.parametrize("case", range(4))
async def test_a_text_that_cannot_fit_is_not_encoded(open_api: Any, case: int) -> None:
    tokenizer = CountingTokenizer()
    async with open_api(tokenizer=tokenizer) as api:
        route, _, body = bodies("x" * (MOST + 1))[case]
        answer = await api.post(route, {"model": "succ", **body})
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["code"]) == (400, "context_length_exceeded")
        assert f"at least {INFO.context_tokens + 1} tokens" in error["message"]
        assert f"maximum context length is {INFO.context_tokens} tokens" in error["message"]
        assert tokenizer.characters <= 1
        route, _, body = bodies("x" * (MOST - 40))[case]
        again = await api.post(route, {"model": "succ", **body})
        assert again.status == 400
        assert tokenizer.characters > INFO.context_tokens


@pytest.mark.spec("API-151")
async def test_a_text_above_the_limit_is_not_tokenized(open_api: Any) -> None:
    tokenizer = CountingTokenizer()
    async with open_api(settings=HttpSettings(max_tokenize_characters=100), tokenizer=tokenizer) as api:
        chat = {"model": "succ", "messages": [{"role": "user", "content": "x" * 101}]}
        for route, body in (
            ("/v1/tokenize", {"model": "succ", "text": "x" * 101}),
            ("/v1/chat/completions/input_tokens", chat),
        ):
            answer = await api.post(route, body)
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (413, "request_too_large")
            assert b"max_tokenize_characters" in answer.body
        assert tokenizer.characters == 0
        assert (await api.post("/v1/tokenize", {"model": "succ", "text": "x" * 100})).status == 200
