"""Texts on which a regular expression may take long, made from its own syntax tree; and the patterns of a source tree.

A pattern that is not linear has a part that repeats, and that can match the same characters in many ways. So each text is what
comes before a repetition, then something that the repetition may match, many times, then a character with which nothing matches.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from re import _constants as codes
from re import _parser
from typing import Any

import attrs

from tests.kit.source_tree import Module

METHODS = ("match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")
FEW = 6
"""Characters that stand for a class, and prefixes that are tried."""

_ALPHABET = "aZ0 _-\n\t\r\"'\\.%(){}[]<>=:,/|*+?&#;~^$@!é\u2028\x00"
_CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d",
    codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w",
    codes.CATEGORY_NOT_WORD: r"\W",
}
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
Items = Iterable[tuple[Any, Any]]


@attrs.frozen(order=True)
class Hostile:
    """`head`, then `body` many times, then `tail`."""

    head: str
    body: str
    tail: str

    def text(self, size: int) -> str:
        """Return about `size` characters of it."""
        return self.head + self.body * max(1, (size - len(self.head)) // len(self.body)) + self.tail


def hostile_texts(pattern: str | bytes, flags: int = 0) -> list[Hostile]:
    """Return what is tried on `pattern`; for bytes the characters are those of Latin-1."""
    tree = list(_parser.parse(pattern, flags))
    pumps = list(_pumps(tree, ""))
    own = sorted({character for _, body in pumps for character in body} | set(_heads(tree)))
    heads = sorted({head for head, _ in pumps}, key=len)[:FEW] or [""]
    bodies = [*dict.fromkeys([*(body for _, body in pumps), *own, _example(tree)])]
    known = {(head, body) for head, body in pumps} | {(head, body) for head in heads for body in bodies}
    texts = {Hostile(head, body, tail) for head, body in known if body for tail in ("", "\x00", "\n")}
    return sorted(text for text in texts if isinstance(pattern, str) or max(map(ord, text.text(1)), default=0) < 256)


def _heads(items: Items) -> Iterator[str]:
    """Yield one character for each part of a pattern that matches a character."""
    for code, given in items:
        if code in (codes.LITERAL, codes.IN, codes.NOT_LITERAL, codes.ANY):
            yield from _characters(code, given)
        else:
            for inner in _inside(code, given):
                yield from _heads(inner)


def _inside(code: Any, given: Any) -> list[Items]:
    if code in _REPEATS:
        return [given[2]]
    if code is codes.BRANCH:
        return list(given[1])
    if code is codes.SUBPATTERN:
        return [given[3]]
    if code is codes.ATOMIC_GROUP:
        return [given]
    if code in (codes.ASSERT, codes.ASSERT_NOT):
        return [given[1]]
    return []


def _pumps(items: Items, head: str) -> Iterator[tuple[str, str]]:
    """Yield (what comes before, what repeats) for each repetition without a small bound."""
    for code, given in items:
        if code in _REPEATS and given[1] > FEW:
            yield from ((head, variant) for variant in _variants(given[2]))
        for inner in _inside(code, given):
            yield from _pumps(inner, head)
        head += _example([(code, given)])


def _variants(items: Items) -> Iterator[str]:
    """Yield short texts that `items` match."""
    items = list(items)
    yield _example(items)
    if len(items) == 1:
        code, given = items[0]
        if code in (codes.LITERAL, codes.IN, codes.NOT_LITERAL, codes.ANY):
            yield from _characters(code, given)
        for inner in _inside(code, given):
            yield from _variants(inner)


def _example(items: Items) -> str:
    """Return a short text that `items` match."""
    text = ""
    for code, given in items:
        if code in (codes.LITERAL, codes.IN, codes.NOT_LITERAL, codes.ANY):
            text += next(iter(_characters(code, given)), "")
        elif code in _REPEATS:
            text += _example(given[2]) * min(max(given[0], 1), 100)
        elif code is codes.BRANCH:
            text += _example(given[1][0])
        elif code in (codes.SUBPATTERN, codes.ATOMIC_GROUP):
            text += _example(_inside(code, given)[0])
    return text


def _characters(code: Any, given: Any) -> list[str]:
    """Return a few characters that one place of a pattern matches."""
    if code is codes.LITERAL:
        return [chr(given)]
    if code is codes.ANY:
        return ["a", "\n"]
    if code is codes.NOT_LITERAL:
        return [character for character in _ALPHABET if ord(character) != given][:FEW]
    negated = any(kind is codes.NEGATE for kind, _ in given)
    named = [chr(value) for kind, value in given if kind is codes.LITERAL]
    named += [chr(value[0]) for kind, value in given if kind is codes.RANGE]
    candidates = [*_ALPHABET] if negated else [*named, *_ALPHABET]
    return [character for character in candidates if any(_is_in(character, one) for one in given) != negated][:FEW]


def _is_in(character: str, one: tuple[Any, Any]) -> bool:
    kind, value = one
    if kind is codes.LITERAL:
        return ord(character) == int(value)
    if kind is codes.RANGE:
        return int(value[0]) <= ord(character) <= int(value[1])
    return kind is codes.CATEGORY and re.match(_CATEGORIES[value], character) is not None


# --- the patterns of a source tree


@attrs.frozen
class FoundPattern:
    """One regular expression in the sources: its place, the methods by which it is used, and its value."""

    place: str
    pattern: str | bytes
    flags: int
    methods: frozenset[str]


@attrs.frozen
class UnknownPattern:
    """A regular expression whose value is known only at run time."""

    place: str


def patterns_of(
    module: Module, names: Mapping[str, Any], uses: Mapping[tuple[str, str], set[str]]
) -> Iterator[FoundPattern | UnknownPattern]:
    """Yield every pattern of `module`; `names` are its globals, `uses` what `uses_of` returns."""
    named = {
        id(node.value): node.targets[0].id
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        place = f"{module.path}:{node.lineno}"
        keyword = next((part.value for part in node.keywords if part.arg == "pattern"), None)
        method = _method_of_re(node)
        if method == "compile":
            methods = frozenset(uses.get((module.name, named.get(id(node), "")), ())) or frozenset(METHODS)
            yield _found(place, node.args, node.keywords, names, methods)
        elif method:
            yield _found(place, node.args[:1], node.keywords, names, frozenset({method}))
        elif keyword is not None:
            yield _found(place, [keyword], [], names, frozenset({"search"}))


def _method_of_re(node: ast.Call) -> str:
    """Return the function of the module `re` that is called, or ""."""
    function = node.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re":
        return function.attr if function.attr in ("compile", *METHODS) else ""
    return ""


def _found(
    place: str,
    arguments: list[ast.expr],
    keywords: list[ast.keyword],
    names: Mapping[str, Any],
    methods: frozenset[str],
) -> FoundPattern | UnknownPattern:
    flags = [*arguments[1:2], *(part.value for part in keywords if part.arg == "flags")]
    try:
        value = _value(arguments[0], names)
        bits = int(_value(flags[0], names)) if flags else 0
    except NameError:
        return UnknownPattern(place)
    return FoundPattern(place, value, bits, methods)


def _value(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    return eval(compile(ast.Expression(expression), "<pattern>", "eval"), dict(names))


def uses_of(modules: Iterable[Module]) -> dict[tuple[str, str], set[str]]:
    """Return the methods of patterns that the sources call on each (module, name), also where another module imports it."""
    uses: dict[tuple[str, str], set[str]] = {}
    for module in modules:
        origins = dict(_imported(module))
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and node.attr in METHODS and isinstance(node.value, ast.Name):
                name = node.value.id
                uses.setdefault(origins.get(name, (module.name, name)), set()).add(node.attr)
    return uses


def _imported(module: Module) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each name that `module` imports from another one, with that module and the name there."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((alias.asname or alias.name, (node.module, alias.name)) for alias in node.names)
