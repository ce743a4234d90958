"""JSON schemas: every keyword is enforced, or refused by its name and place.

Owns the walk over a schema. What comes out has only what the compiler enforces, and means the same. A lenient walk, for tools
that are not strict, leaves out what cannot be enforced instead. Refuses to know tokens and requests.

Beyond the tables of `keywords`: a reference stays inside the schema; distinct additional names are not counted, so that
`minProperties` reaches one beyond the required ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from tlserve.chat.grammars.recursion import find_endless, find_standing, resolve
from tlserve.errors import ClientError

Schema = Mapping[str, Any] | bool
MAX_SCHEMAS = 5000


def checked_schema(schema: Any, place: str, field: str) -> Schema:
    """Return `schema` with what is enforced alone; raises ClientError that names the keyword and its place."""
    return _whole(_Walk(place, field, lenient=False), schema)


def lenient_schema(schema: Any, place: str, field: str) -> Schema:
    """Return what of `schema` can be enforced; raises ClientError where it is no schema."""
    return _whole(_Walk(place, field, lenient=True), schema)


def _whole(walk: _Walk, schema: Any) -> Schema:
    if schema is False:
        raise walk.refusal("", "is false, which no value matches")
    try:
        own = walk.schema(schema, "")
    except RecursionError:
        raise walk.refusal("", "nests too deep") from None
    walk.check_references(own)
    for find in (find_standing, find_endless):
        if (place := find(own)) is not None:
            raise walk.refusal(place, "asks for itself without an end")
    return own


class _Walk:
    """One walk; `_schemas` are the schemas made on it, by identity, and `_references` where each reference stands."""

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
            raise self.refusal(path, "is no JSON schema; send an object, or true or false")
        if len(self._schemas) >= MAX_SCHEMAS:
            raise self.refusal("", f"has more than {MAX_SCHEMAS} schemas inside it")
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
        elif not self._says_nothing(keyword, value, where):
            raise self._not_enforced(keyword, where)

    def _says_nothing(self, keyword: str, value: Any, where: str) -> bool:
        names_the_whole = where in (".$id", ".id")
        return names_the_whole or keyword in ANNOTATIONS or keyword.startswith("x-") or HARMLESS.get(keyword) is value

    def _not_enforced(self, keyword: str, where: str) -> ClientError:
        hint = HINTS.get(keyword, "leave it out")
        what = "cannot be enforced here" if keyword in KNOWN else "is not a keyword of JSON schema that is known here"
        return self.refusal(where, f"{what}; {hint}")

    def _check_plain(self, keyword: str, value: Any, where: str) -> None:
        if not PLAIN[keyword].is_right(value):
            raise self.refusal(where, f"cannot be enforced with this value; send {PLAIN[keyword].words}")

    def _pattern(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise self.refusal(where, "is no pattern; send a string")
        if is_beyond(value):
            raise self.refusal(
                where, "cannot be enforced: it looks around, goes back, or has flags or borders of words"
            )
        return as_rust(value)

    def _check_reference(self, value: Any, where: str) -> None:
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
            raise self.refusal(where, 'points outside of the schema; send a reference such as "#/$defs/name"')

    def check_references(self, root: Schema) -> None:
        """Check that each reference points at a schema; a lenient walk lets go of one that does not."""
        ids = set(map(id, self._schemas))
        for path, own in self._references:
            target = resolve(root, own["$ref"])
            if isinstance(target, bool) or id(target) in ids:
                continue
            if not self._lenient:
                raise self.refusal(f"{path}.$ref", "points at no schema")
            del own["$ref"]

    def _one(self, keyword: str, value: Any, where: str) -> Any:
        if keyword == "items" and isinstance(value, list):
            raise self.refusal(where, "is a list, which is prefixItems by now; send that")
        return value

    def _list_name(self, keyword: str) -> str:
        return "anyOf" if self._lenient and keyword == "oneOf" else keyword

    def _list(self, value: Any, where: str) -> list[Schema]:
        if not isinstance(value, list) or not value:
            raise self.refusal(where, "is no list of schemas")
        return [self.schema(member, f"{where}[{index}]") for index, member in enumerate(value)]

    def _named(self, keyword: str, value: Any, where: str) -> dict[str, Schema]:
        if not isinstance(value, Mapping):
            raise self.refusal(where, "is no object of schemas")
        named = keyword == "patternProperties"
        return {
            self._pattern(name, where) if named else name: self.schema(member, f"{where}.{name}")
            for name, member in value.items()
        }

    def _narrow(self, own: dict[str, Any], path: str) -> None:
        """Add what the compiler's idea of a format lacks."""
        narrowing = NARROWED.get(own.get("format", ""))
        if narrowing is None:
            return
        if "pattern" in own and not self._lenient:
            raise self.refusal(
                f"{path}.pattern", f"cannot be enforced beside the format {own['format']}; leave one out"
            )
        own["pattern"] = narrowing

    def _check_count(self, own: dict[str, Any], path: str) -> None:
        """Names beyond `properties` may come twice, and would be counted twice."""
        most = len(set(own.get("required", ()))) + 1
        if own.get("minProperties", 0) <= most:
            return
        if not self._lenient:
            raise self.refusal(f"{path}.minProperties", f"cannot be enforced beyond {most}: name more in required")
        del own["minProperties"]
