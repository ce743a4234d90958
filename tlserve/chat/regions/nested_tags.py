"""A value that is written as tags inside tags: `<city>Paris</city><zip>75001</zip>` is an object, `<item>` elements are a list.

Owns which tags are an object and which a list, by the schema where it says so. Does not know the arguments around the value.
Source: the chat template of MiniMax M3, which writes lists and objects so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import attrs

from tlserve.chat.dialect import ArgumentMarks
from tlserve.chat.output.argument_stream import declared_types, typed

MAX_DEPTH = 64
_NAME = r"([^<>/\s][^<>\s]{0,255})"
_ITEM = "item"
_MAX_UNIONS = 8


@attrs.define
class _Element:
    name: str = ""
    text: str = ""
    children: list[_Element] = attrs.field(factory=list)


@lru_cache(maxsize=16)
def nested_tag(marks: ArgumentMarks) -> re.Pattern[str]:
    """Return the pattern of a tag: its name is the first group where it opens, the second where it closes."""
    begin, end = marks.value_end.split("{key}")
    opening = f"{re.escape(marks.key_begin)}{_NAME}{re.escape(marks.key_end)}"
    return re.compile(f"{opening}|{re.escape(begin)}{_NAME}{re.escape(end)}")


def nested_json(text: str, marks: ArgumentMarks, schema: Any) -> str:
    """Return the JSON text of a value; a text without tags gets the type that `schema` names.

    A value is a text if the schema allows a text, if its tags do not close each other, or if there is text between them.
    """
    is_text = "string" in declared_types({"properties": {"value": schema}}, "value")
    root = None if is_text else _elements(text, marks)
    return _text(text, schema) if root is None else _written(root, schema)


def _elements(text: str, marks: ArgumentMarks) -> _Element | None:
    """Return the elements in a text as the children of one, or None if it is a text."""
    open_elements, at = [_Element()], 0
    for found in nested_tag(marks).finditer(text):
        inside, at = text[at : found.start()], found.end()
        last = open_elements[-1]
        if inside.strip() and (found[1] or last.children):
            return None
        if found[1]:
            if len(open_elements) > MAX_DEPTH:
                return None
            last.children.append(_Element(found[1]))
            open_elements.append(last.children[-1])
        elif found[2] != last.name:
            return None
        else:
            last.text = inside
            open_elements.pop()
    is_whole = len(open_elements) == 1 and not text[at:].strip()
    return open_elements[0] if is_whole and open_elements[0].children else None


def _written(element: _Element, schema: Any) -> str:
    if not element.children:
        return _text(element.text, schema)
    is_list = all(child.name == _ITEM for child in element.children)
    allowed = list(_containers(schema)) or [("array" if is_list else "object", {})]
    kind, own = next((found for found in allowed if (found[0] == "array") == is_list), allowed[0])
    if kind == "array":
        return f"[{', '.join(_written(child, own.get('items')) for child in element.children)}]"
    properties = own.get("properties")
    members: dict[str, list[str]] = {}
    for child in element.children:
        known = properties.get(child.name) if isinstance(properties, Mapping) else None
        members.setdefault(child.name, []).append(_written(child, known))
    values = ((name, own[0] if len(own) == 1 else f"[{', '.join(own)}]") for name, own in members.items())
    return f"{{{', '.join(f'{json.dumps(name, ensure_ascii=False)}: {value}' for name, value in values)}}}"


def _text(text: str, schema: Any) -> str:
    """Return the JSON of a text; an empty one can be an empty list or object."""
    kind, _ = next(_containers(schema), ("", {}))
    if kind and not text.strip():
        return "[]" if kind == "array" else "{}"
    return typed(text, {"properties": {"value": schema}}, "value")


def _containers(schema: Any, depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the lists and objects that a schema allows, each with its own schema."""
    if not isinstance(schema, Mapping) or depth > _MAX_UNIONS:
        return
    kinds = schema.get("type")
    for kind in ("array", "object"):
        if kind == kinds or (isinstance(kinds, list) and kind in kinds):
            yield kind, schema
    for choices in map(schema.get, ("anyOf", "oneOf")):
        for own in choices if isinstance(choices, list) else ():
            yield from _containers(own, depth + 1)
