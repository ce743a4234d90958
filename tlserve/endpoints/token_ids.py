"""Token ids that a client sends: are they in the vocabulary, and what do they spell.

Owns both checks and the two ways to write ids as text. Refuses to know where the ids come from.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve.errors import ClientError
from tlserve.text.tokenizer import Tokenizer


def check_ids(ids: Sequence[int], vocabulary_size: int, place: str) -> None:
    """Refuse an id that the vocabulary does not have; raises ClientError naming it."""
    strange = max(ids, default=0)
    if strange >= vocabulary_size:
        raise ClientError(f"{place} has the token id {strange}, and the vocabulary has {vocabulary_size}", param=place)


def visible_text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return what `ids` add to a text: nothing for control tokens, U+FFFD for what is not UTF-8."""
    return b"".join(map(tokenizer.token_bytes, ids)).decode(errors="replace")


def spelled_text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return how `ids` are written, control tokens too; U+FFFD for what is not UTF-8."""
    return b"".join(map(tokenizer.token_spelling, ids)).decode(errors="replace")
