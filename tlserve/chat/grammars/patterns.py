"""Patterns of JSON schemas (ECMAScript) -> regular expressions of the compiler (Rust).

Handles the differences that would silently change the meaning: the dot stops at more line ends in ECMAScript, and some
characters are special inside a Rust class but not inside an ECMAScript class. `is_beyond` finds the features that the compiler
does not have. Source: ECMA-262, "Patterns"; the documentation of the crate `regex`.
"""

from __future__ import annotations

import re

# The repetition is possessive, and a class that is not closed ends the walk: so it takes time linear in the pattern.
_PART = re.compile(r"\\.|(?:\[\^?\]?(?:\\.|[^\]\\])*+\])|[^\[\\]", re.DOTALL)
_DOT = r"[^\n\r\u2028\u2029]"
_IN_CLASS = re.compile(r"\\.|[\[&~]", re.DOTALL)
_UNKNOWN = re.compile(r"\(\?(?:<?[=!]|[a-zA-Z])|\\[1-9bBk]")


def as_rust(pattern: str) -> str:
    """Return the Rust spelling of an ECMAScript pattern."""
    parts, end = list[str](), 0
    while (found := _PART.match(pattern, end)) is not None:
        parts.append(_part(found[0]))
        end = found.end()
    return "".join(parts) + pattern[end:]  # the rest is not a pattern, and the compiler says so


def _part(part: str) -> str:
    if part == ".":
        return _DOT
    if part[0] == "[" and len(part) > 1:
        return "[" + _IN_CLASS.sub(_in_class, part[1:])
    return part


def _in_class(found: re.Match[str]) -> str:
    text = found[0]
    return text if text[0] == "\\" else "\\" + text


def is_beyond(pattern: str) -> bool:
    """Say whether a pattern uses what an automaton cannot do: look-around, back-references, flags, word boundaries."""
    return _UNKNOWN.search(pattern) is not None
