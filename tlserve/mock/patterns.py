"""Patterns of texts in a script: the whole text, `~part` for a part of it, `/expression/` for a regular expression.

Owns their meaning. Does not know what they are compared with.
"""

from __future__ import annotations

import functools
import re

_compiled = functools.lru_cache(maxsize=1024)(re.compile)


def fits(pattern: str, text: str) -> bool:
    """Say whether `text` fits; `~` alone fits every text."""
    if pattern.startswith("~"):
        return pattern[1:] in text
    if _is_expression(pattern):
        return _compiled(pattern[1:-1]).search(text) is not None
    return pattern == text


def check_pattern(pattern: str | None, place: str) -> list[str]:
    """Return what is wrong with a pattern, in no or one line."""
    if pattern is None or pattern.startswith("~") or not _is_expression(pattern):
        return []
    try:
        _compiled(pattern[1:-1])
    except re.error as error:
        return [f"{place} is no regular expression: {error}"]
    return []


def hides(earlier: str, later: str) -> bool:
    """Say whether it is certain that every text that fits `later` fits `earlier`; False if that cannot be told."""
    if earlier == later:
        return True
    if later.startswith("~"):
        return earlier.startswith("~") and earlier[1:] in later[1:]
    return earlier == "~" if _is_expression(later) else not check_pattern(earlier, "") and fits(earlier, later)


def _is_expression(pattern: str) -> bool:
    return len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/")
