"""Prompts of an exact number of tokens, found with a server that counts the tokens of a text.

Owns the search: whole words as long as they fit, then the rest. Does not know how tokens are counted. The number is that of the
prompt's text; the tokens of a chat template are added to it and are the same for every prompt.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from tlserve.bench.target import TargetServer
from tlserve.bench.workload import WORDS
from tlserve.errors import OperatorError
from tlserve.http.client.connection import ResponseBroken

TOKENIZE = "/tokenize"
FILLER = " a"
ENDING = "s"

Count = Callable[[str], Awaitable[int]]


async def exact_prompt(source: random.Random, tokens: int, count: Count) -> str:
    """Return random words of exactly `tokens` tokens; raises OperatorError if none are found.

    A word has at least one token, so `tokens` words are enough.
    """
    words = source.choices(WORDS, k=tokens + 1)
    kept, found = await _most_words(words, tokens, count)
    if kept and found == tokens:
        return " ".join(words[:kept])
    for text in _longer(words, kept, tokens - found):
        if await count(text) == tokens:
            return text
    raise OperatorError(f"no words of exactly {tokens} tokens were found; give a number of words instead")


async def _most_words(words: Sequence[str], tokens: int, count: Count) -> tuple[int, int]:
    """Return the largest number of words that have at most `tokens` tokens, and the number of their tokens."""
    kept, found, too_many = 0, 0, tokens + 1
    while kept + 1 < too_many:
        middle = (kept + too_many) // 2
        counted = await count(" ".join(words[:middle]))
        if counted <= tokens:
            kept, found = middle, counted
        else:
            too_many = middle
    return kept, found


def _longer(words: Sequence[str], kept: int, missing: int) -> Iterator[str]:
    """Yield texts that can have `missing` more tokens: with fillers, with letters, with the beginning of the next word."""
    text, following = " ".join(words[:kept]), words[kept]
    yield (text + FILLER * missing).strip()
    yield text + ENDING * missing
    for end in range(1, len(following)):
        yield f"{text} {following[:end]}".strip()


async def count_tokens(target: TargetServer, text: str) -> int:
    """Return the number of tokens of `text` for the target's model; raises OperatorError if the server cannot count."""
    body = json.dumps({"model": target.model, "text": text, "add_special_tokens": False}).encode()
    try:
        async with await target.connect() as client:
            answer = await client.request("POST", target.path(TOKENIZE), target.headers, body)
        return int(msgspec.json.decode(answer.body)["count"])
    except (OSError, ResponseBroken, msgspec.DecodeError, RecursionError, KeyError, TypeError):
        raise OperatorError(
            f"{target.url} does not count tokens (POST /v1/tokenize); give a number of words instead of tokens"
        ) from None
