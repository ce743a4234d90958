"""Texts, patterns and tokens as they are written in a Lark grammar.

Owns the quoting. Source: the syntax page of llguidance.
"""

from __future__ import annotations

import json
import re

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


def token_reference(token: int) -> str:
    """Return the reference to a token that no text spells."""
    return f"<[{token}]>"
