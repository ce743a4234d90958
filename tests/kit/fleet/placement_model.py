"""A small model of conversations over nodes with bounded caches: the share of the prompts that is found there.

No engine and no time: turns come in a random order, some of them at once, and each goes to the node that `choose` returns.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs

from tlserve.fleet.head.limits import PlacementWeights
from tlserve.fleet.head.node_ranking import Candidate, rank
from tlserve.fleet.head.prefix_index import BLOCK_TOKENS, PrefixIndex, chain_of, home_key

NODES = ("a", "b", "c")

Chain = tuple[bytes, ...]
Choose = Callable[[Chain, Callable[[str], int]], str]


@attrs.define
class Conversation:
    tokens: tuple[int, ...]
    turns: int


class Conversations:
    """`count` chats of `turns` turns with a shared system prompt, `running` of them at a time; deterministic from `seed`."""

    def __init__(
        self, seed: int, *, count: int = 60, turns: int = 6, running: int = 12, cache_blocks: int = 2500
    ) -> None:
        self._rng = random.Random(seed)
        self._system = self._ids(48)
        self._chats = [Conversation(self._system + self._ids(40), turns) for _ in range(count)]
        self._running = running
        self._caches = {node: PrefixIndex(cache_blocks) for node in NODES}  # the truth: what a node has
        self._busy: list[tuple[str, Conversation]] = []
        self.hit_tokens = self.prompt_tokens = 0

    def _ids(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(32_000) for _ in range(count))

    def load(self, node: str) -> int:
        return sum(where == node for where, _ in self._busy)

    def hit_rate(self, choose: Choose) -> float:
        """Play all turns, each on the node that `choose(chain, load)` names; return the share of prompt tokens found there."""
        while self._chats or self._busy:
            if self._chats and len(self._busy) < self._running:
                self._begin_turn(choose)
            else:
                self._end_turn()
        return self.hit_tokens / self.prompt_tokens

    def _begin_turn(self, choose: Choose) -> None:
        chat = self._chats.pop(self._rng.randrange(len(self._chats)))
        chain = chain_of(chat.tokens)
        node = choose(chain, self.load)
        self.hit_tokens += self._caches[node].matched_tokens(chain)
        self.prompt_tokens += len(chain) * BLOCK_TOKENS
        self._caches[node].insert(chain)
        self._busy.append((node, chat))

    def _end_turn(self) -> None:
        node, chat = self._busy.pop(self._rng.randrange(len(self._busy)))
        chat.tokens += self._ids(60)
        self._caches[node].insert(chain_of(chat.tokens))
        chat.tokens += self._ids(20)
        chat.turns -= 1
        if chat.turns:
            self._chats.append(chat)


class ByAffinity:
    """One head's choice: it expects on a node what it sent there."""

    def __init__(self) -> None:
        self._sent = {node: PrefixIndex(16_384) for node in NODES}
        self._weights = PlacementWeights()

    def __call__(self, chain: Chain, load: Callable[[str], int]) -> str:
        candidates = [Candidate(node, load(node), self._sent[node].matched_tokens(chain)) for node in NODES]
        node = rank(candidates, home_key(chain), self._weights)[0].node
        self._sent[node].insert(chain)
        return node


def in_turn(*heads: Choose) -> Choose:
    """Return a choice that uses the heads in turn, as a load balancer in front of them does."""
    calls = iter(range(1 << 30))
    return lambda chain, load: heads[next(calls) % len(heads)](chain, load)


def at_random(seed: int) -> Choose:
    """Return the random choice."""
    rng = random.Random(seed)
    return lambda chain, load: rng.choice(NODES)
