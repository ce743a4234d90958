"""Schemas that ask for themselves: those that no answer of finite length matches, and those that say nothing but themselves.

Owns the search for both, and references. Refuses to know keywords that hold no schemas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from tlserve.chat.grammars.keywords import LISTS, NAMED, ONE_SCHEMA


def subschemas(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the schemas right inside `schema`, each with its path from there."""
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
    """Return what a reference such as `#/$defs/x` points at; None if there is nothing."""
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(key)] if key.isdecimal() and int(key) < len(found) else None
        else:
            found = found.get(key) if isinstance(found, Mapping) else None
    return found


def find_endless(root: Any) -> str | None:
    """Return the path of a schema that never ends, or None."""
    nodes = list(_walk(root, ""))
    ending: set[int] = set()
    gained = [0]
    while gained:
        gained = [id(node) for _, node in nodes if id(node) not in ending and _ends(node, root, ending)]
        ending.update(gained)
    return next((path for path, node in nodes if id(node) not in ending), None)


def find_standing(root: Any) -> str | None:
    """Return the path of a schema that asks for itself without any step into a value, or None."""
    done: set[int] = set()
    for path, node in _walk(root, ""):
        if id(node) not in done and _stands(node, root, done, ()):
            return path
    return None


def _stands(schema: Any, root: Any, done: set[int], under_way: tuple[int, ...]) -> bool:
    """Say whether `schema` comes back to itself; `done` are those that do not."""
    if not isinstance(schema, Mapping) or id(schema) in done:
        return False
    if id(schema) in under_way:
        return True
    members = [member for keyword in ("allOf", "anyOf", "oneOf") for member in schema.get(keyword, ())]
    if "$ref" in schema:
        members.append(resolve(root, schema["$ref"]))
    found = any(_stands(member, root, done, (*under_way, id(schema))) for member in members)
    if not found:
        done.add(id(schema))
    return found


def _walk(schema: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(schema, Mapping):
        yield path, schema
        for step, member in subschemas(schema):
            yield from _walk(member, path + step)


def _ends(schema: Mapping[str, Any], root: Any, ending: set[int]) -> bool:
    def can(member: Any) -> bool:
        return not isinstance(member, Mapping) or id(member) in ending

    if not all(map(can, _needed(schema, root))):
        return False
    return all(any(map(can, schema[keyword])) for keyword in ("anyOf", "oneOf") if keyword in schema)


def _needed(schema: Mapping[str, Any], root: Any) -> Iterator[Any]:
    """Yield the schemas that each value of `schema` has to match, itself or in a part."""
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
