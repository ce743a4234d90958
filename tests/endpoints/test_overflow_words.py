"""An error for a prompt that does not fit is recognised by the frameworks that then shorten it.

They look for words in the text of the error, which is that of the official client: "Error code: 400 - " and the body as Python
writes it. The words are those of LiteLLM 1.110.2 (its module of exception mapping) and LangChain's OpenAI package 1.7.4.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

LITELLM = (
    *("exceed context limit", "this model's maximum context length is", "model's maximum context limit"),
    *("requested token count exceeds the model's maximum context length", "is longer than the model's context length"),
    *("input tokens exceed the configured limit", "exceeds the available context size", "prompt is too long"),
    "exceeds the maximum number of tokens allowed",
)
RECOGNISED: Mapping[str, Callable[[str, str], bool]] = {
    "LiteLLM": lambda text, _: any(words in text.lower() for words in LITELLM),
    "LangChain": lambda text, message: "context_length_exceeded" in text or "prompt is too long" in message,
}
LONG = "a" * 64
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHAT, {"messages": [{"role": "user", "content": LONG}]}),
    (CHAT, {"messages": [{"role": "user", "content": LONG}], "stream": True}),
    (CHAT, {"messages": [{"role": "user", "content": "a" * 32}], "max_tokens": 40}),
    (COMPLETIONS, {"prompt": LONG}),
    (COMPLETIONS, {"prompt": [1] * 70}),
    (COMPLETIONS, {"prompt": "a" * 32, "max_tokens": 40}),
    (COMPLETIONS, {"prompt": "a" * 100_000}),
    ("/v1/responses", {"input": LONG}),
    ("/v1/embeddings", {"input": "a" * 65}),
)


@pytest.mark.spec("API-17")
@pytest.mark.parametrize("framework", RECOGNISED)
@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_an_overflow_is_recognised_by_frameworks(open_api: Any, path: str, body: Any, framework: str) -> None:
    async with open_api() as api:
        answer = await api.post(path, {"model": "succ", **body})
    document = json.loads(answer.body)
    assert answer.status == 400
    assert RECOGNISED[framework](f"Error code: 400 - {document}", document["error"]["message"])
