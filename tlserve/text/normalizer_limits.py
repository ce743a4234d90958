"""How much longer the normalisers of a tokenizer.json can make a text.

Owns the limits. Normalisers that replace one character by many, one after the other, turn a short prompt into gigabytes, and
the library cannot be interrupted. Patterns need no limit: the library's regular expressions give up after a number of steps,
and `library_tokenizer` reports that as a failure of the tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tlserve.errors import ModelRefused

MOST_GROWTH = 64
MOST_NORMALIZERS = 64
MOST_CHARSMAP_CHARS = 1 << 20


def check_growth(what: str, normalizers: Iterable[Mapping[str, Any]]) -> None:
    """Refuse normalisers that together could make a text more than `MOST_GROWTH` times as long; raises ModelRefused."""
    parts = list(normalizers)
    growth = 1.0
    for part in parts:
        growth *= max(1.0, _growth(part))
    if growth > MOST_GROWTH or len(parts) > MOST_NORMALIZERS:
        raise ModelRefused(
            f"{what}: its normalizer could make a text {growth:.3g} times as long; the limit is {MOST_GROWTH}"
        )
    if any(len(str(part.get("precompiled_charsmap", ""))) > MOST_CHARSMAP_CHARS for part in parts):
        raise ModelRefused(f"{what}: its precompiled_charsmap is larger than {MOST_CHARSMAP_CHARS} characters")


def _growth(part: Mapping[str, Any]) -> float:
    """Return the factor by which one normaliser can lengthen a text; a prefix lengthens a text of one character most."""
    if part.get("type") == "Prepend":
        return 1.0 + len(str(part.get("prepend", "")))
    if part.get("type") != "Replace":
        return 1.0
    pattern = part.get("pattern")
    literal = pattern.get("String") if isinstance(pattern, dict) else None
    matched = len(literal) if isinstance(literal, str) and literal else 1
    # An empty pattern and some expressions also match between characters.
    return len(str(part.get("content", ""))) / matched + (literal is None or not literal)
