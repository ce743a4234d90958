"""Conversations of several turns over several nodes: how much of their prompts a node's prefix cache has.

Owns the conversations and the two ways to place their turns: by a head, or each on a random node. Does not start servers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import msgspec
import trio

from tlserve.bench.asking import CHAT
from tlserve.bench.target import TargetServer
from tlserve.bench.workload import random_words
from tlserve.errors import ServerFault

QUESTION_WORDS = 32
SYSTEM_WORDS = 64
ANSWER_TOKENS = 16


@attrs.frozen(kw_only=True)
class Talks:
    """The number of conversations, their turns, and how many run at once; each has its own system prompt."""

    conversations: int = 12
    turns: int = 5
    at_once: int = 4


@attrs.frozen(kw_only=True)
class Hits:
    """Prompt tokens sent, and how many of them a cache had."""

    prompt_tokens: int
    cached_tokens: int

    @property
    def rate(self) -> float:
        """Return the share that a cache had."""
        return self.cached_tokens / self.prompt_tokens


async def measure_hits(talks: Talks, seed: int, choose: Callable[[], TargetServer], done: Callable[[], None]) -> Hits:
    """Run the conversations that `seed` draws; `choose` returns the server for each turn."""
    usages: list[dict[str, Any]] = []
    left = iter(range(talks.conversations))

    async def client() -> None:
        for number in left:
            usages.extend(await _talk(talks, seed + number, choose, done))

    async with trio.open_nursery() as nursery:
        for _ in range(talks.at_once):
            nursery.start_soon(client)
    return Hits(
        prompt_tokens=sum(usage["prompt_tokens"] for usage in usages),
        cached_tokens=sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages),
    )


async def _talk(
    talks: Talks, seed: int, choose: Callable[[], TargetServer], done: Callable[[], None]
) -> list[dict[str, Any]]:
    source = random.Random(seed)
    messages = [{"role": "system", "content": random_words(source, SYSTEM_WORDS)}]
    usages = []
    for _ in range(talks.turns):
        messages.append({"role": "user", "content": random_words(source, QUESTION_WORDS)})
        answer = await _ask(choose(), messages)
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        usages.append(answer["usage"])
        done()
    return usages


async def _ask(target: TargetServer, messages: Sequence[dict[str, str]]) -> dict[str, Any]:
    body = {"model": target.model, "messages": list(messages), "max_tokens": ANSWER_TOKENS, "temperature": 0}
    async with await target.connect() as client:
        answer = await client.request("POST", target.path(CHAT), target.headers, msgspec.json.encode(body))
    if answer.status != 200:
        raise ServerFault(f"{target.url} answered {answer.status}: {answer.body[:200].decode(errors='replace')}")
    document: dict[str, Any] = msgspec.json.decode(answer.body)
    return document
