"""The bytes of tokens -> where each of them begins in a text that they spell.

Owns the counting, in characters, and what is done where a text and its tokens differ. Refuses to know tokens: it is given bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve.text.detokenizer import Detokenizer


def token_offsets(pieces: Sequence[bytes]) -> tuple[list[int], str]:
    """Return the offset of each piece in the text that all of them spell, and that text.

    The offset of a piece is that of the character that its first byte belongs to.
    """
    detokenizer, offsets, texts, read = Detokenizer(), [], [], 0
    for piece in pieces:
        offsets.append(read)
        texts.append(detokenizer.feed(piece))
        read += len(texts[-1])
    texts.append(detokenizer.finish())
    return offsets, "".join(texts)


def offsets_in(text: str, *spellings: Sequence[bytes]) -> list[int]:
    """Return the offsets in `text` of tokens that it was encoded to; `spellings` are the ways to write them, all as many.

    The first way that spells `text` counts, with or without a space in front, which some vocabularies put there. None does
    where a vocabulary changes texts before it encodes them: then they are those of the first way, within `text`.
    """
    ways = [token_offsets(pieces) for pieces in spellings]
    for offsets, spelled in ways:
        if spelled in (text, " " + text):
            return [max(0, offset - (len(spelled) - len(text))) for offset in offsets]
    return [min(offset, len(text)) for offset in ways[0][0]]
