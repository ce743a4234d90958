"""The byte tokenizer: 256 ids, one for each byte.

It has no special tokens, so no text can become one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tlserve.text.tokenizer import Tokenizer


class ByteTokenizer:
    """The bytes of UTF-8 as ids; a lone surrogate, which has no bytes, becomes "?"."""

    vocabulary_size = 256
    longest_token_bytes = 1
    special_tokens: Mapping[str, int] = MappingProxyType({})
    bos_id: int | None = None
    eos_id: int | None = None
    add_bos = False
    add_eos = False

    def encode(self, text: str) -> list[int]:
        """Return the bytes of `text`."""
        return list(text.encode("utf-8", "replace"))

    def encode_with_specials(self, text: str, *, origin: str = "") -> list[int]:  # noqa: ARG002
        """Return the bytes of `text`; there are no special tokens."""
        return self.encode(text)

    def token_bytes(self, token: int) -> bytes:
        """Return the byte of the id; raises IndexError."""
        if not 0 <= token < self.vocabulary_size:
            raise IndexError(f"there is no token {token}")
        return bytes((token,))

    def token_spelling(self, token: int) -> bytes:
        """Return the byte of the id; raises IndexError."""
        return self.token_bytes(token)


def build(metadata: Mapping[str, object]) -> Tokenizer:  # noqa: ARG001 - bytes need no description
    """Return the byte tokenizer."""
    return ByteTokenizer()
