"""Texts, patterns and tokens as they are written in a Lark grammar.

Owns the quoting. Source: the syntax page of llguidance.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from tlserve.chat.dialect import marks_in

ANY_TEXT = r"/(?s:.*)/"
"""A terminal that matches any text."""


def quoted(text: str) -> str:
    """Return `text` as a literal."""
    return json.dumps(text, ensure_ascii=False)


def slashed(pattern: str) -> str:
    """Return a regular expression as a terminal: its slashes and line ends escaped."""
    pieces = re.findall(r"\\.|.", pattern, flags=re.DOTALL)
    return "/" + "".join(_ESCAPES.get(piece, piece) for piece in pieces) + "/"


_ESCAPES = {"/": r"\/", "\n": r"\n", "\r": r"\r", "\\\n": r"\n"}


def spelled_row(text: str, special_tokens: Mapping[str, int]) -> str:
    """Return the row that spells a text of markup: its control tokens, and the texts between them."""
    tokens = [mark for mark in marks_in(text) if mark in special_tokens]
    if not tokens:
        return quoted(text) if text else ""
    pieces = re.split("(" + "|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) + ")", text)
    return " ".join(
        token_reference(special_tokens[piece]) if piece in tokens else quoted(piece) for piece in pieces if piece
    )


def token_reference(token: int) -> str:
    """Return the reference to a token that no text spells."""
    return f"<[{token}]>"
