"""Schemas that refer to themselves endlessly: no finite answer matches them, or they mean nothing but themselves.

Owns the search for both kinds, and how references are resolved. Looks only at keywords that contain schemas.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from tlserve.chat.grammars.keywords import LISTS, NAMED, ONE_SCHEMA

Node = Mapping[str, Any]
Parts = Callable[[Node], Iterable[Any]]


def subschemas(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the schemas directly inside `schema`, each with its path from there."""
    if not isinstance(schema, Mapping):
        return
    for keyword, value in schema.items():
        if keyword in ONE_SCHEMA:
            yield f".{keyword}", value
        elif keyword in LISTS:
            yield from ((f".{keyword}[{index}]", member) for index, member in enumerate(value))
        elif keyword in NAMED:
            yield from ((f".{keyword}.{name}", member) for name, member in value.items())


def resolve(root: Any, reference: str) -> Any:
    """Return the value that a reference such as `#/$defs/x` points to, or None."""
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(key)] if key.isdecimal() and int(key) < len(found) else None
        else:
            found = found.get(key) if isinstance(found, Mapping) else None
    return found


def find_endless(root: Any) -> str | None:
    """Return the path of a schema that no finite value matches, or None."""
    return _left_over(root, lambda node: _needed(node, root), _has_alternatives)


def find_standing(root: Any) -> str | None:
    """Return the path of a schema that refers to itself for the same value, or None."""
    return _left_over(root, lambda node: _in_place(node, root), lambda _node, _settled: True)


def _left_over(root: Any, parts: Parts, may_settle: Callable[[Node, set[int]], bool]) -> str | None:
    """Return the path of the first schema that never settles, or None.

    A schema settles once all its `parts` have settled and `may_settle` allows it.
    """
    nodes = list(_walk(root, ""))
    waiting: dict[int, list[Node]] = {}
    for _, node in nodes:
        for part in (*parts(node), *_alternatives(node)):
            waiting.setdefault(id(part), []).append(node)
    settled: set[int] = set()
    queue = deque(node for _, node in reversed(nodes))
    while queue:
        node = queue.popleft()
        if id(node) not in settled and _are_settled(parts(node), settled) and may_settle(node, settled):
            settled.add(id(node))
            queue.extend(waiting.get(id(node), ()))
    return next((path for path, node in nodes if id(node) not in settled), None)


def _are_settled(parts: Iterable[Any], settled: set[int]) -> bool:
    return all(not isinstance(part, Mapping) or id(part) in settled for part in parts)


def _walk(schema: Any, path: str) -> Iterator[tuple[str, Node]]:
    if isinstance(schema, Mapping):
        yield path, schema
        for step, member in subschemas(schema):
            yield from _walk(member, path + step)


def _alternatives(schema: Node) -> Iterator[Any]:
    for keyword in ("anyOf", "oneOf"):
        yield from schema.get(keyword, ())


def _has_alternatives(schema: Node, settled: set[int]) -> bool:
    """Say whether at least one member of each choice has settled."""
    choices = (schema[keyword] for keyword in ("anyOf", "oneOf") if keyword in schema)
    return all(any(_are_settled((member,), settled) for member in choice) for choice in choices)


def _in_place(schema: Node, root: Any) -> Iterator[Any]:
    """Yield the schemas that apply to the same value as `schema`."""
    yield from schema.get("allOf", ())
    yield from _alternatives(schema)
    if "$ref" in schema:
        yield resolve(root, schema["$ref"])


def _needed(schema: Node, root: Any) -> Iterator[Any]:
    """Yield the schemas that every value of `schema`, or a part of the value, must match."""
    yield from schema.get("allOf", ())
    if "$ref" in schema:
        yield resolve(root, schema["$ref"])
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        yield from (properties.get(name) for name in schema.get("required", ()))
    if schema.get("type") == "array":
        firsts, least = schema.get("prefixItems", []), schema.get("minItems", 0)
        yield from firsts[:least]
        if least > len(firsts):
            yield schema.get("items")
