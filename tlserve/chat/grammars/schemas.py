"""JSON schemas: every keyword is enforced, or refused with its name and place.

Owns the walk over a schema. Its result has only keywords that the compiler enforces, and means the same. A lenient walk, for
tools that are not strict, leaves out the other keywords instead of refusing them. `closed_schema` adds what a small model needs:
without it, a model invents names until a limit stops it. Knows nothing of tokens and requests.

Two rules are not in the tables of `keywords`: a reference must stay inside the schema; and `minProperties` can be at most one
more than the number of required names, because different additional names cannot be counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tlserve.chat.grammars.keywords import (
    ANNOTATIONS,
    HARMLESS,
    HINTS,
    KNOWN,
    LISTS,
    NAMED,
    NARROWED,
    ONE_SCHEMA,
    PLAIN,
)
from tlserve.chat.grammars.patterns import as_rust, is_beyond
from tlserve.chat.grammars.recursion import find_endless, find_standing, resolve, subschemas
from tlserve.errors import ClientError

Schema = Mapping[str, Any] | bool
MAX_SCHEMAS = 20_000


def checked_schema(schema: Any, place: str, field: str) -> Schema:
    """Return `schema` as it is enforced; raises ClientError with the keyword that cannot be, and its place."""
    return _whole(_Walk(place, field, lenient=False), schema)


def lenient_schema(schema: Any, place: str, field: str) -> Schema:
    """Return the part of `schema` that can be enforced; raises ClientError if it is not a schema."""
    return _whole(_Walk(place, field, lenient=True), schema)


def _whole(walk: _Walk, schema: Any) -> Schema:
    if schema is False:
        raise walk.refusal("", "is false, so no value matches it")
    try:
        own = walk.schema(schema, "")
    except RecursionError:
        raise walk.refusal("", "is nested too deeply") from None
    walk.check_references(own)
    for find in (find_standing, find_endless):
        if (place := find(own)) is not None:
            raise walk.refusal(place, "refers to itself endlessly")
    return own


class _Walk:
    """One walk over a schema. `_schemas` are the schemas that it made, `_references` the place of each reference."""

    def __init__(self, place: str, field: str, *, lenient: bool) -> None:
        self._place = place
        self._field = field
        self._lenient = lenient
        self._schemas: list[Any] = []
        self._references: list[tuple[str, dict[str, Any]]] = []

    def refusal(self, path: str, words: str) -> ClientError:
        return ClientError(f"{self._place}{path} {words}", param=self._field)

    def schema(self, schema: Any, path: str) -> Schema:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise self.refusal(path, "is not a JSON schema; send an object, true or false")
        if len(self._schemas) >= MAX_SCHEMAS:
            raise self.refusal("", f"contains more than {MAX_SCHEMAS} schemas")
        own = dict(self._members(schema, path))
        self._check_count(own, path)
        self._narrow(own, path)
        if "$ref" in own:
            self._references.append((path, own))
        self._schemas.append(own)
        return own

    def _members(self, schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
        for keyword, value in schema.items():
            where = f"{path}.{keyword}"
            try:
                yield from self._member(keyword, value, where)
            except ClientError:
                if not self._lenient:
                    raise

    def _member(self, keyword: str, value: Any, where: str) -> Iterator[tuple[str, Any]]:
        if keyword in PLAIN:
            self._check_plain(keyword, value, where)
            yield keyword, value
        elif keyword == "pattern":
            yield keyword, self._pattern(value, where)
        elif keyword == "$ref":
            self._check_reference(value, where)
            yield keyword, value
        elif keyword in ONE_SCHEMA:
            yield keyword, self.schema(self._one(keyword, value, where), where)
        elif keyword in LISTS:
            yield self._list_name(keyword), self._list(value, where)
        elif keyword in NAMED:
            yield keyword, self._named(keyword, value, where)
        elif not self._has_no_effect(keyword, value, where):
            raise self._not_enforced(keyword, where)

    def _has_no_effect(self, keyword: str, value: Any, where: str) -> bool:
        names_the_whole = where in (".$id", ".id")
        return names_the_whole or keyword in ANNOTATIONS or keyword.startswith("x-") or HARMLESS.get(keyword) is value

    def _not_enforced(self, keyword: str, where: str) -> ClientError:
        hint = HINTS.get(keyword, "leave it out")
        what = "cannot be enforced here" if keyword in KNOWN else "is not a known keyword of JSON Schema"
        return self.refusal(where, f"{what}; {hint}")

    def _check_plain(self, keyword: str, value: Any, where: str) -> None:
        if not PLAIN[keyword].is_right(value):
            raise self.refusal(where, f"cannot be enforced with this value; send {PLAIN[keyword].words}")

    def _pattern(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise self.refusal(where, "is not a pattern; send a string")
        if is_beyond(value):
            raise self.refusal(
                where, "cannot be enforced: it uses look-around, back-references, flags or word boundaries"
            )
        return as_rust(value)

    def _check_reference(self, value: Any, where: str) -> None:
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
            raise self.refusal(where, 'points outside the schema; send a reference such as "#/$defs/name"')

    def check_references(self, root: Schema) -> None:
        """Check that each reference resolves to a schema; a lenient walk drops the others."""
        ids = set(map(id, self._schemas))
        for path, own in self._references:
            target = resolve(root, own["$ref"])
            if isinstance(target, bool) or id(target) in ids:
                continue
            if not self._lenient:
                raise self.refusal(f"{path}.$ref", "does not resolve to a schema")
            del own["$ref"]

    def _one(self, keyword: str, value: Any, where: str) -> Any:
        if keyword == "items" and isinstance(value, list):
            raise self.refusal(where, "is a list; use prefixItems instead")
        return value

    def _list_name(self, keyword: str) -> str:
        return "anyOf" if self._lenient and keyword == "oneOf" else keyword

    def _list(self, value: Any, where: str) -> list[Schema]:
        if not isinstance(value, list) or not value:
            raise self.refusal(where, "is not a list of schemas")
        return [self.schema(member, f"{where}[{index}]") for index, member in enumerate(value)]

    def _named(self, keyword: str, value: Any, where: str) -> dict[str, Schema]:
        if not isinstance(value, Mapping):
            raise self.refusal(where, "is not an object of schemas")
        named = keyword == "patternProperties"
        return {
            self._pattern(name, where) if named else name: self.schema(member, f"{where}.{name}")
            for name, member in value.items()
        }

    def _narrow(self, own: dict[str, Any], path: str) -> None:
        """Add the pattern that makes the compiler's check of a format exact."""
        narrowing = NARROWED.get(own.get("format", ""))
        if narrowing is None:
            return
        if "pattern" in own and not self._lenient:
            raise self.refusal(
                f"{path}.pattern", f"cannot be enforced together with the format {own['format']}; leave one out"
            )
        own["pattern"] = narrowing

    def _check_count(self, own: dict[str, Any], path: str) -> None:
        """Refuse a `minProperties` that counts additional names: the same name can come twice and is counted twice."""
        most = len(set(own.get("required", ()))) + 1
        if own.get("minProperties", 0) <= most:
            return
        if not self._lenient:
            raise self.refusal(f"{path}.minProperties", f"cannot be enforced above {most}; list more names in required")
        del own["minProperties"]


# --- objects without other names ----------------------------------------------------------------------------------------

_REFERRING = ("allOf", "anyOf", "oneOf", "$ref")
_SHARED = frozenset({"$defs", "definitions"})
_CLOSABLE = frozenset({"type", "properties", "required", *_SHARED, *ANNOTATIONS})


def closed_schema(root: Schema) -> Schema:
    """Return a checked schema in which objects have no names that it does not mention, where it says nothing about them.

    Everything that matches the result also matches `root`. So an object that several schemas describe together, as under allOf,
    stays as it is, and so does an object whose other keywords can need more names.
    """
    if isinstance(root, bool):
        return root
    kept: set[int] = set()
    for node in _nodes(root):
        if _is_joint(node, root):
            _keep(node, root, kept)
    closed: Schema = _close(root, kept)
    return closed


def _nodes(schema: Any, leave_out: frozenset[str] = frozenset()) -> Iterator[Mapping[str, Any]]:
    """Yield the objects among `schema` and the schemas inside it; not those below the keywords `leave_out`."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            yield node
            waiting += [inner for _, inner in subschemas({k: v for k, v in node.items() if k not in leave_out})]


def _is_joint(node: Mapping[str, Any], root: Schema) -> bool:
    """Say whether several schemas describe the values of `node` together."""
    referring = [keyword for keyword in _REFERRING if keyword in node]
    if not referring:
        return False
    asserting = set(node) - set(referring) - _SHARED - ANNOTATIONS
    several = len(node.get("allOf", ())) > 1 or not _are_told_apart(node.get("oneOf", ()), root)
    return several or len(referring) > 1 or bool(asserting)


def _are_told_apart(members: Sequence[Any], root: Schema) -> bool:
    """Say whether a required property with a fixed value of its own tells each of the alternatives apart."""
    if not members:
        return True
    values = [dict(_fixed(_referred(own, root))) for own in members]
    shared = set(values[0]).intersection(*values[1:])
    return any(len({own[name] for own in values}) == len(values) for name in shared)


def _referred(schema: Any, root: Schema) -> Any:
    return resolve(root, schema["$ref"]) if isinstance(schema, Mapping) and set(schema) == {"$ref"} else schema


def _fixed(schema: Any) -> Iterator[tuple[str, str]]:
    """Yield the required properties that have one value, with its JSON."""
    if not isinstance(schema, Mapping):
        return
    for name in set(schema.get("required", ())) & set(schema.get("properties", {})):
        own = schema["properties"][name]
        if isinstance(own, Mapping):
            values = [own["const"]] if "const" in own else own.get("enum", ())
            if len(values) == 1 and isinstance(values[0], str):
                yield name, values[0]


def _keep(start: Mapping[str, Any], root: Schema, kept: set[int]) -> None:
    """Add to `kept` the schemas that `start` is made of, also by reference."""
    waiting: list[Any] = [start]
    while waiting:
        for node in _nodes(waiting.pop(), leave_out=_SHARED):
            if id(node) not in kept:
                kept.add(id(node))
                if "$ref" in node:
                    waiting.append(resolve(root, node["$ref"]))


def _close(schema: Any, kept: set[int]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    own = {keyword: _inside(keyword, value, kept) for keyword, value in schema.items()}
    if id(schema) not in kept and _is_open(schema):
        own["additionalProperties"] = False
    return own


def _inside(keyword: str, value: Any, kept: set[int]) -> Any:
    if keyword in ONE_SCHEMA:
        return _close(value, kept)
    if keyword in LISTS:
        return [_close(member, kept) for member in value]
    if keyword in NAMED:
        return {name: _close(member, kept) for name, member in value.items()}
    return value


def _is_open(schema: Mapping[str, Any]) -> bool:
    names = schema.get("properties", {})
    return "properties" in schema and set(schema) <= _CLOSABLE and set(schema.get("required", ())) <= set(names)
