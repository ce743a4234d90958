"""Which full blocks of keys and values belong to which beginnings of token sequences.

Owns two ways to find them: `HashCache` (a chain of strong hashes, one per block) and `RadixCache` (a tree over the tokens
themselves). `kv_blocks` knows which sequence uses a block and which block is evicted first. Only full blocks are shared, so
nothing is ever copied on write.

Both find the same blocks. They differ in what a lookup compares: a 256-bit BLAKE2b of the whole beginning, or every token.
The chain of hashes is as in vLLM's automatic prefix caching, the tree as in SGLang's RadixAttention at block granularity.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import Protocol
from weakref import WeakValueDictionary

import attrs

Tokens = tuple[int, ...]

_ROOT, _BLOCK = b"prefix root", b"prefix block"
"""What a digest is of, as BLAKE2b's personalization: no namespace, which a client can choose, has the digest of a block."""


@attrs.define(eq=False)
class Prefix:
    """A beginning of sequences that ends with a full block; the root (block -1) is the empty one.

    The hash cache finds continuations by `digest`, the radix cache by `children`.
    """

    block: int
    parent: Prefix | None = None
    tokens: Tokens = ()
    digest: bytes = b""
    children: dict[Tokens, Prefix] = attrs.field(factory=dict, repr=False)


class PrefixCache(Protocol):
    """A map from a beginning and the next full block of tokens to the block with their keys and values."""

    def root(self, namespace: str) -> Prefix:
        """Return the empty beginning; different namespaces share nothing."""

    def find(self, parent: Prefix, tokens: Tokens) -> Prefix | None:
        """Return the beginning `parent` + `tokens`, if it is cached."""

    def add(self, parent: Prefix, tokens: Tokens, block: int) -> Prefix:
        """Remember that `block` holds `tokens` after `parent`."""

    def remove(self, prefix: Prefix) -> None:
        """Forget `prefix`, which has no cached continuation."""


class _Roots:
    """One root per namespace, kept while a table or a cached block refers to it: unused namespaces cost nothing."""

    def __init__(self) -> None:
        self._roots: WeakValueDictionary[str, Prefix] = WeakValueDictionary()

    def root(self, namespace: str) -> Prefix:
        """Return the namespace's root; make it if there is none."""
        root = self._roots.get(namespace)
        if root is None:
            name = namespace.encode(errors="surrogatepass")
            root = self._roots[namespace] = Prefix(-1, digest=blake2b(name, digest_size=32, person=_ROOT).digest())
        return root


class HashCache(_Roots):
    """A flat table from the chained hash of a beginning to its last block."""

    def __init__(self) -> None:
        super().__init__()
        self._by_digest: dict[bytes, Prefix] = {}

    def find(self, parent: Prefix, tokens: Tokens) -> Prefix | None:
        """Look the chained digest up."""
        return self._by_digest.get(_chain(parent, tokens))

    def add(self, parent: Prefix, tokens: Tokens, block: int) -> Prefix:
        """Add the chained digest."""
        prefix = Prefix(block, parent, tokens, _chain(parent, tokens))
        self._by_digest[prefix.digest] = prefix
        return prefix

    def remove(self, prefix: Prefix) -> None:
        """Remove the digest."""
        del self._by_digest[prefix.digest]


def _chain(parent: Prefix, tokens: Tokens) -> bytes:
    return blake2b(parent.digest + array("q", tokens).tobytes(), digest_size=32, person=_BLOCK).digest()


class RadixCache(_Roots):
    """A tree per namespace, one edge per full block, compared token by token."""

    def find(self, parent: Prefix, tokens: Tokens) -> Prefix | None:
        """Follow the edge `tokens`."""
        return parent.children.get(tokens)

    def add(self, parent: Prefix, tokens: Tokens, block: int) -> Prefix:
        """Add the edge `tokens`."""
        prefix = parent.children[tokens] = Prefix(block, parent, tokens)
        return prefix

    def remove(self, prefix: Prefix) -> None:
        """Remove the leaf."""
        assert prefix.parent is not None
        del prefix.parent.children[prefix.tokens]


def make_prefix_cache(kind: str) -> PrefixCache | None:
    """Return the cache that the setting names; None for "none"."""
    made: dict[str, type[HashCache] | type[RadixCache]] = {"hash": HashCache, "radix": RadixCache}
    return made[kind]() if kind in made else None
