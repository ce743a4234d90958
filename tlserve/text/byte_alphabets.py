"""The alphabets in which vocabularies spell bytes, and how to get the bytes back.

There are two: GPT-2's, where each byte has one printable character, and SentencePiece's, where U+2581 is a space and `<0x0A>`
is a byte.

Source: `bytes_to_unicode` of the GPT-2 release; the SentencePiece paper, sections 3.1 and 3.2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def _byte_characters() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in frozenset(printable)]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


BYTE_CHARACTERS: Mapping[str, int] = _byte_characters()
"""GPT-2's alphabet: character -> byte."""

_IN_ALPHABET = frozenset(BYTE_CHARACTERS).issuperset
_TO_LATIN1 = {ord(character): chr(byte) for character, byte in BYTE_CHARACTERS.items()}


def byte_level_bytes(token: str) -> bytes:
    """Return the bytes that `token` spells in GPT-2's alphabet; a token outside the alphabet is its own text."""
    if _IN_ALPHABET(token):
        return token.translate(_TO_LATIN1).encode("latin-1")
    return token.encode("utf-8", "replace")


def byte_value(token: str) -> int | None:
    """Return the byte of a token such as `<0x0A>`, or None for another token."""
    found = _BYTE.match(token)
    return int(found[1], 16) if found else None


def sentencepiece_bytes(token: str) -> bytes:
    """Return the text of a SentencePiece token as bytes."""
    return token.replace(SPACE, " ").encode()


def literal_bytes(tokens: Sequence[str], pieces: list[bytes], ids: Mapping[str, int]) -> list[bytes]:
    """Return `pieces`, in which the tokens of `ids` are replaced by their own spelling."""
    for i in ids.values():
        pieces[i] = tokens[i].encode()
    return pieces
