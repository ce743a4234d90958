"""Which beginnings of prompts a node has probably cached, judged by the prompts that were sent to it.

Owns the names of prompt blocks, and a bounded index of them, one per node and incarnation. Knows nothing of nodes and loads.
Pure, and the same in every process: two heads give a block the same name.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

BLOCK_TOKENS = 16
"""Tokens in one block; a node's own blocks may have another length."""

LONGEST_CHAIN = 2048
"""The largest number of named blocks of one prompt; later blocks make no difference."""

HOME_BLOCKS = 4
"""The blocks that name a conversation: enough to distinguish most, and few enough for its first turn to have them."""

_ROOT, _BLOCK, _HOME = b"affinity root", b"affinity block", b"affinity home"
"""What a name is of: a salt, which a client can choose, never has the name of a block."""

Chain = tuple[bytes, ...]
"""The names of a sequence's whole blocks: each is a hash of its tokens, of all before them, and of the namespace."""


def chain_of(tokens: Sequence[int], namespace: str = "") -> Chain:
    """Return the names of the whole blocks of `tokens`; sequences with the same beginning share the first names."""
    ids = array("Q", tokens[: BLOCK_TOKENS * LONGEST_CHAIN]).tobytes()
    block_bytes = BLOCK_TOKENS * array("Q").itemsize
    name = _name(namespace.encode(errors="surrogatepass"), _ROOT)
    names = []
    for end in range(block_bytes, len(ids) + 1, block_bytes):
        name = _name(name + ids[end - block_bytes : end], _BLOCK)
        names.append(name)
    return tuple(names)


def home_key(chain: Chain, conversation: str = "", namespace: str = "") -> bytes:
    """Return the name of a conversation for every head; without `conversation`, that of a prompt's first blocks.

    Such a prompt has the same name as its continuations only if it has `HOME_BLOCKS` blocks.
    """
    if conversation:
        return _name(f"{len(namespace)}:{namespace}{conversation}".encode(errors="surrogatepass"), _HOME)
    return chain[min(len(chain), HOME_BLOCKS) - 1] if chain else b""


def _name(data: bytes, of: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8, person=of).digest()


class PrefixIndex:
    """The names of the blocks sent to one node; beyond `capacity` the least recently used are forgotten."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._names: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def matched_tokens(self, chain: Chain) -> int:
        """Return the number of tokens at the beginning of `chain` that the node should have cached."""
        for count, name in enumerate(chain):
            if name not in self._names:
                return count * BLOCK_TOKENS
        return len(chain) * BLOCK_TOKENS

    def insert(self, chain: Chain) -> None:
        """Remember `chain`; its beginning is forgotten last, because the rest is useless without it."""
        for name in reversed(chain):
            self._names[name] = None
            self._names.move_to_end(name)
        self._forget(len(self._names) - self._capacity)

    def correct(self, expected_tokens: int, cached_tokens: int) -> None:
        """Forget as many of the oldest blocks as the node had fewer of a prompt than expected."""
        self._forget((expected_tokens - cached_tokens) // BLOCK_TOKENS)

    def _forget(self, count: int) -> None:
        for _ in range(min(count, len(self._names))):
            self._names.popitem(last=False)
