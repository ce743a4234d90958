"""Arguments in tags, `<parameter=key>` around each value, as rules of a grammar.

Owns which schemas can be enforced in this form: an object of named properties, each of one type. A string is not quoted, so
only its length, `enum` and `const` can be enforced; every other value is JSON. `tlserve.chat.output.xml_region.XmlRegion` reads
the arguments in the same way. Does not know the markup around the arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from tlserve.chat.dialect import PlacedSchema
from tlserve.chat.grammars.lark import quoted
from tlserve.chat.grammars.source import COMPACT
from tlserve.errors import ClientError

_END = "\n</parameter>\n"
_ROOT = frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions"})
_TEXT = frozenset({"type", "minLength", "maxLength", "enum", "const"})
_KEY = re.compile(r"[^<>\n\"\\]{1,128}")


def held_in_tags(placed: PlacedSchema, *, strict: bool) -> PlacedSchema:
    """Return the part of the schema that can be enforced in tags; raises ClientError if a strict one loses anything."""
    if strict:
        _check(placed)
    return attrs.evolve(placed, schema=_loosened(placed.schema))


def _check(placed: PlacedSchema) -> None:
    for keyword in placed.schema:
        if keyword not in _ROOT:
            raise _beyond(f"{placed.place}.{keyword}")
    for name, own in placed.schema.get("properties", {}).items():
        where = f"{placed.place}.properties.{name}"
        if not _is_plain(name, own):
            words = f"{where} needs a plain name and a single type, because this model writes arguments as tags"
            raise ClientError(words, param="tools")
        for keyword in own:
            if own["type"] == "string" and keyword not in _TEXT:
                raise _beyond(f"{where}.{keyword}")


def _beyond(place: str) -> ClientError:
    return ClientError(f"{place} cannot be enforced for this model, which writes arguments as tags", param="tools")


def _is_plain(name: str, own: Any) -> bool:
    return bool(_KEY.fullmatch(name)) and isinstance(own, Mapping) and isinstance(own.get("type"), str)


def _loosened(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = {
        name: {key: value for key, value in own.items() if own["type"] != "string" or key in _TEXT}
        for name, own in schema.get("properties", {}).items()
        if _is_plain(name, own)
    }
    kept = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    required = [name for name in schema.get("required", ()) if name in properties]
    return {"type": "object", **kept, "properties": properties, "required": required, "additionalProperties": False}


def tag_rules(name: str, placed: PlacedSchema) -> Iterator[str]:
    """Yield the rule `name` for the arguments, and one rule for each argument."""
    schema = placed.schema
    required = schema.get("required", ())
    members = list(schema.get("properties", {}).items())
    parts = (f"{name}_{i}" + ("" if key in required else "?") for i, (key, _) in enumerate(members))
    yield f"{name}: " + (" ".join(parts) or '""')
    for i, (key, own) in enumerate(members):
        yield from _member(f"{name}_{i}", key, own, schema)


def _member(name: str, key: str, own: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[str]:
    head = quoted(f"<parameter={key}>\n")
    if own["type"] != "string":
        defs = {key: root[key] for key in ("$defs", "definitions") if key in root}
        schema = json.dumps({**own, **defs, "x-guidance": COMPACT}, ensure_ascii=False)
        yield f"{name}: {head} %json {schema} {quoted(_END)}"
    elif "enum" in own or "const" in own:
        texts = [text for text in own.get("enum", [own.get("const")]) if isinstance(text, str)]
        yield f"{name}: {head} ({' | '.join(map(quoted, texts))}) {quoted(_END)}"
    else:
        least, most = own.get("minLength", 0), own.get("maxLength", "")
        yield f"{name}: {head} {name}_text"
        yield f"{name}_text[lazy]: {name.upper()}_TEXT"
        inside = r"/((?s:.*)[^\n])?<\/parameter>(?s:.*)/"
        yield rf"{name.upper()}_TEXT: /(?s:.{{{least},{most}}})\n<\/parameter>\n/ & ~{inside}"
