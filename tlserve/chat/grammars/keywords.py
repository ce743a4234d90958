"""The keywords of JSON Schema: which are enforced, which have no effect on values, and the values that each can have.

Owns the tables. Experiments found which keywords the compiler enforces: constrained random walks, judged by a validator
(`tests/chat/grammars/test_random_walks.py`). Source: JSON Schema 2020-12, Validation and Core; the OpenAPI document for
`discriminator` and `nullable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_DAY_OF_ANY_YEAR = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_DAY_OF_ANY_YEAR}|(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
_SECOND = "[^:]*:[^:]*:[0-5]"

NARROWED = {
    "date": f"^{_DATE}$",
    "date-time": f"^{_DATE}[Tt]{_SECOND}",
    "time": f"^{_SECOND}",
    "email": "^[^@]{1,64}@[^@]{1,255}$",
}
"""Patterns for formats in which the compiler allows too much: days and leap seconds that do not exist, overlong parts."""

LARGEST = 2**53
"""Larger integers are not stored exactly."""

MAX_COUNT = 2**20
MAX_FRACTION_DIGITS = 9

ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$schema", "$anchor", "contentMediaType", "contentEncoding", "contentSchema", "discriminator"),
    }
)
"""Keywords that have no effect on which values are valid."""

HARMLESS: Mapping[str, Any] = {
    "uniqueItems": False,
    "nullable": False,
    "unevaluatedProperties": True,
    "unevaluatedItems": True,
}
"""Keywords that are not enforced, each with the value that has no effect."""

HINTS = {
    "nullable": 'send "type": [..., "null"]',
    "additionalItems": "send prefixItems and items",
    "dependencies": "leave it out",
    "$id": "leave it out",
}

KNOWN = frozenset(
    {
        *(
            "not",
            "if",
            "then",
            "else",
            "dependentRequired",
            "dependentSchemas",
            "contains",
            "minContains",
            "maxContains",
        ),
        *("uniqueItems", "propertyNames", "unevaluatedProperties", "unevaluatedItems", "$id", "id", "$dynamicRef"),
        *("$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary", *HINTS),
    }
)
"""Keywords of JSON Schema that cannot be enforced."""


@attrs.frozen
class Value:
    """The values that a keyword can have, in words and as a check."""

    words: str
    is_right: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def _is_step(value: Any) -> bool:
    return _is_number(value) and value > 0 and round(value, MAX_FRACTION_DIGITS) == value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_types(value: Any) -> bool:
    return value in TYPES if _is_text(value) else _are_names(value) and bool(value) and set(value) <= set(TYPES)


def is_exact(value: Any) -> bool:
    """Say whether every number in a value is stored exactly."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _is_number(value)
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(is_exact, members))


_NUMBER = Value("a number of at most 2^53", _is_number)
_COUNT = Value(f"an integer from 0 to {MAX_COUNT}", _is_count)
_EXACT = Value("a value whose numbers are at most 2^53", is_exact)

PLAIN: Mapping[str, Value] = {
    "type": Value(f"one of {', '.join(TYPES)}, or a list of them", _are_types),
    "const": _EXACT,
    "enum": Value(
        "a list of at least one value, with numbers of at most 2^53",
        lambda v: isinstance(v, list) and bool(v) and is_exact(v),
    ),
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "exclusiveMinimum": _NUMBER,
    "exclusiveMaximum": _NUMBER,
    "multipleOf": Value(f"a number above 0 with at most {MAX_FRACTION_DIGITS} decimal places", _is_step),
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "minItems": _COUNT,
    "maxItems": _COUNT,
    "minProperties": _COUNT,
    "maxProperties": _COUNT,
    "required": Value("a list of names", _are_names),
    "format": Value(f"one of {', '.join(sorted(FORMATS))}", lambda value: _is_text(value) and value in FORMATS),
}
"""Keywords whose values hold no schemas."""

ONE_SCHEMA = ("items", "additionalProperties")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords that hold one schema, a list of them, and schemas by name."""
