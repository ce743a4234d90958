"""Arguments that are not one JSON object, each between its own marks, as rules of a grammar.

Owns which schemas can be enforced in this form: an object of named properties, each of one type. In tags a string is not quoted,
so only its length, `enum` and `const` can be enforced; every other value is JSON. In Python each value is JSON. The regions of
`tlserve.chat.regions` read the arguments in the same way. Does not know the markup around the arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from tlserve.chat.dialect import TYPE, ArgumentMarks, Notation, PlacedSchema
from tlserve.chat.grammars.lark import quoted, slashed
from tlserve.chat.grammars.source import COMPACT
from tlserve.errors import ClientError

_ROOT = frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions"})
_TEXT = frozenset({"type", "minLength", "maxLength", "enum", "const"})
_KEY = re.compile(r"[^<>\n\"\\]{1,128}")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,127}")
Spell = Callable[[str], str]
"""A text -> the row that spells it, with its control tokens."""


def held_in_marks(placed: PlacedSchema, marks: ArgumentMarks, *, strict: bool) -> PlacedSchema:
    """Return the part of the schema that can be enforced in `marks`; raises ClientError if a strict one loses anything."""
    if strict:
        _check(placed, marks)
    return attrs.evolve(placed, schema=_loosened(placed.schema, marks))


def _check(placed: PlacedSchema, marks: ArgumentMarks) -> None:
    for keyword in placed.schema:
        if keyword not in _ROOT:
            raise _beyond(f"{placed.place}.{keyword}")
    for name, own in placed.schema.get("properties", {}).items():
        where = f"{placed.place}.properties.{name}"
        if not _is_plain(name, own, marks):
            words = f"{where} needs a plain name and a single type, because this model writes arguments as tags"
            raise ClientError(words, param="tools")
        for keyword in own:
            if _is_text(own, marks) and keyword not in _TEXT:
                raise _beyond(f"{where}.{keyword}")


def _beyond(place: str) -> ClientError:
    return ClientError(f"{place} cannot be enforced for this model, which writes arguments as tags", param="tools")


def _is_plain(name: str, own: Any, marks: ArgumentMarks) -> bool:
    plain = _KEY if marks.notation is Notation.TAGS and "{key}" not in marks.value_end else _WORD
    return bool(plain.fullmatch(name)) and isinstance(own, Mapping) and isinstance(own.get("type"), str)


def _is_text(own: Mapping[str, Any], marks: ArgumentMarks) -> bool:
    """Say whether a value is a text without quotes."""
    return own["type"] == "string" and marks.notation is not Notation.PYTHON


def _loosened(schema: Mapping[str, Any], marks: ArgumentMarks) -> dict[str, Any]:
    properties = {
        name: {key: value for key, value in own.items() if not _is_text(own, marks) or key in _TEXT}
        for name, own in schema.get("properties", {}).items()
        if _is_plain(name, own, marks)
    }
    kept = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    required = [name for name in schema.get("required", ()) if name in properties]
    return {"type": "object", **kept, "properties": properties, "required": required, "additionalProperties": False}


def marked_rules(name: str, placed: PlacedSchema, marks: ArgumentMarks, spell: Spell) -> Iterator[str]:
    """Yield the rule `name` for the arguments, and one rule for each argument."""
    schema = placed.schema
    required = schema.get("required", ())
    members = list(schema.get("properties", {}).items())
    yield from _listed(name, [key in required for key, _ in members], marks.between)
    for i, (key, own) in enumerate(members):
        yield from _member(f"{name}_{i}", (key, own), schema, marks, spell)


def _listed(name: str, required: list[bool], between: str) -> Iterator[str]:
    """Yield the rule for the members in their order; those that are not required can be left out."""
    if not between:
        parts = (f"{name}_{i}" + ("" if needed else "?") for i, needed in enumerate(required))
        yield f"{name}: " + (" ".join(parts) or '""')
        return
    yield f"{name}: {name}_first_0"
    for place in ("first", "more"):
        comma = f"{quoted(between)} " if place == "more" else ""
        for i, needed in enumerate(required):
            left_out = "" if needed else f" | {name}_{place}_{i + 1}"
            yield f"{name}_{place}_{i}: {comma}{name}_{i} {name}_more_{i + 1}{left_out}"
        yield f'{name}_{place}_{len(required)}: ""'


def _member(
    name: str, member: tuple[str, Mapping[str, Any]], root: Mapping[str, Any], marks: ArgumentMarks, spell: Spell
) -> Iterator[str]:
    key, own = member
    is_text = _is_text(own, marks)
    key_end = marks.key_end if own["type"] == "string" else marks.json_key_end or marks.key_end
    key_end = key_end.replace(TYPE, "number" if own["type"] == "integer" else own["type"])
    head = spell(f"{marks.key_begin}{key}{key_end}{marks.text_begin if is_text else ''}")
    tail = (marks.text_end if is_text else "") + marks.value_end.replace("{key}", key)
    if not is_text:
        defs = {key: root[key] for key in ("$defs", "definitions") if key in root}
        schema = json.dumps({**own, **defs, "x-guidance": COMPACT}, ensure_ascii=False)
        yield f"{name}: {head} %json {schema} {spell(tail)}"
    elif "enum" in own or "const" in own:
        texts = [text for text in own.get("enum", [own.get("const")]) if isinstance(text, str)]
        yield f"{name}: {head} ({' | '.join(map(quoted, texts))}) {spell(tail)}"
    else:
        yield from _text_member(name, head, tail, own, spell)


def _text_member(name: str, head: str, tail: str, own: Mapping[str, Any], spell: Spell) -> Iterator[str]:
    """Yield the rules of a text up to `tail`, in which the tag that ends it does not stand.

    A newline at either end of the text would be read as one of the markup, where the markup has none itself.
    """
    least, most = own.get("minLength", 0), own.get("maxLength", "")
    text = f"(?s:.{{{least},{most}}})"
    if spell(tail).startswith(("<[", '"\\n" <[')):  # a control token, which no text contains
        plain = "" if tail.startswith("\n") else r" & ~/\n(?s:.*)/ & ~/(?s:.*)\n/"
        yield f"{name}: {head} {name.upper()}_TEXT {spell(tail)}"
        yield f"{name.upper()}_TEXT: /{text}/{plain}"
        return
    tag, whole = (slashed(re.escape(part).replace("\\ ", " "))[1:-1] for part in (tail.strip(), tail))
    before = r"((?s:.*)[^\n])?" if tail.startswith("\n") else r"(?s:.+)"
    plain = "" if tail.startswith("\n") else rf" & ~/\n(?s:.*)/ & ~/(?s:.*)\n{whole}/ & ~/{tag}(?s:.+){tag}(?s:.*)/"
    yield f"{name}: {head} {name}_text"
    yield f"{name}_text[lazy]: {name.upper()}_TEXT"
    yield rf"{name.upper()}_TEXT: /{text}{whole}/ & ~/{before}{tag}(?s:.+)/{plain}"
