"""The bytes of tokens -> the place of each token in the text that they spell.

Owns the counting, in characters, and the rule for a text that differs from its tokens. Knows nothing of tokens: it gets bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve.text.detokenizer import Detokenizer


def token_offsets(pieces: Sequence[bytes]) -> tuple[list[int], str]:
    """Return the offset of each piece in the text that all of them spell, and that text.

    The offset of a piece is the offset of the character that its first byte belongs to.
    """
    detokenizer, offsets, texts, read = Detokenizer(), [], [], 0
    for piece in pieces:
        offsets.append(read)
        texts.append(detokenizer.feed(piece))
        read += len(texts[-1])
    texts.append(detokenizer.finish())
    return offsets, "".join(texts)


def offsets_in(text: str, *spellings: Sequence[bytes]) -> list[int]:
    """Return the offsets in `text` of its tokens; each of `spellings` is one way to spell all the tokens.

    The first way that spells `text` is used; a space in front is allowed, because some vocabularies add one. A vocabulary may
    change a text before it encodes it, so that no way spells the text. Then the first way is used, within the length of `text`.
    """
    ways = [token_offsets(pieces) for pieces in spellings]
    for offsets, spelled in ways:
        if spelled in (text, " " + text):
            return [max(0, offset - (len(spelled) - len(text))) for offset in offsets]
    return [min(offset, len(text)) for offset in ways[0][0]]
