"""Random JSON schemas of the keywords that are served, and an independent validator of answers.

The validator is the package `jsonschema`, with numbers read as decimals, so that a multiple of 0.1 is exact.
"""

from __future__ import annotations

import json
import re
from decimal import Context, Decimal, localcontext
from typing import Any

import jsonschema
from hypothesis import strategies as st

NAMES = ("a", "b", "name", "x1", "é")
PATTERNS = ("^[a-c]+$", "b", "^a.c", "^(ab|cd){1,2}$", "^[^\\[x]{0,4}$", "^\\d{2}-\\w?$")
_ENDLESS_EXPONENT = re.compile(r"[0-9][eE][-+]?[0-9]{4,}")
FORMATS = ("date", "ipv4", "ipv6", "uuid", "email")


def numbers() -> st.SearchStrategy[dict[str, Any]]:
    bounds = st.fixed_dictionaries(
        {},
        optional={
            "minimum": st.sampled_from((-7, 0, 0.5, 3)),
            "exclusiveMinimum": st.sampled_from((-3, 0, 1.25)),
            "maximum": st.sampled_from((5, 9.5, 120)),
            "exclusiveMaximum": st.sampled_from((7, 10.5, 1000)),
            "multipleOf": st.sampled_from((1, 2, 0.1, 0.25, 7)),
        },
    )
    return st.builds(lambda kind, rest: {"type": kind, **rest}, st.sampled_from(("integer", "number")), bounds)


def texts() -> st.SearchStrategy[dict[str, Any]]:
    optional = {"minLength": st.integers(0, 3), "maxLength": st.integers(3, 12), "pattern": st.sampled_from(PATTERNS)}
    return st.one_of(
        st.fixed_dictionaries({"type": st.just("string")}, optional=optional),
        st.fixed_dictionaries({"type": st.just("string"), "format": st.sampled_from(FORMATS)}),
    )


def values() -> st.SearchStrategy[dict[str, Any]]:
    constants = st.sampled_from((None, True, 3, -0.5, "a", 'say "hi"\n', "é", [1, "b"], {"k": [None, 2]}))
    return st.one_of(
        st.builds(lambda value: {"const": value}, constants),
        st.builds(lambda members: {"enum": members}, st.lists(constants, min_size=1, max_size=4)),
        st.sampled_from(({"type": "null"}, {"type": "boolean"}, {"type": ["integer", "null"], "minimum": 2}, {})),
    )


def arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    optional = {
        "items": st.one_of(inner, st.booleans()),
        "prefixItems": st.lists(inner, min_size=1, max_size=3),
        "minItems": st.integers(0, 2),
        "maxItems": st.integers(2, 4),
    }
    return st.fixed_dictionaries({"type": st.just("array")}, optional=optional)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    optional = {
        "properties": st.dictionaries(st.sampled_from(NAMES), st.one_of(inner, st.booleans()), max_size=4),
        "patternProperties": st.dictionaries(st.sampled_from(("^x", "^[a-c]$")), inner, max_size=2),
        "additionalProperties": st.one_of(inner, st.booleans()),
        "required": st.lists(st.sampled_from(NAMES), unique=True, max_size=3),
        "minProperties": st.integers(0, 3),
        "maxProperties": st.integers(1, 4),
    }
    return st.fixed_dictionaries({"type": st.just("object")}, optional=optional)


def joined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    several = st.lists(inner, min_size=1, max_size=3)
    both = st.builds(
        lambda left, right: {**left, **right}, inner, st.builds(lambda members: {"anyOf": members}, several)
    )
    return st.one_of(
        both, *(st.builds(lambda members, key=key: {key: members}, several) for key in ("anyOf", "oneOf", "allOf"))
    )


def schemas() -> st.SearchStrategy[Any]:
    """Return schemas, with references to a definition that can refer to itself."""
    leaves = st.one_of(numbers(), texts(), values(), st.just({"$ref": "#/$defs/node"}))
    inner = st.recursive(leaves, lambda below: st.one_of(arrays(below), objects(below), joined(below)), max_leaves=6)
    return st.builds(lambda root, node: {**root, "$defs": {"node": node}}, inner, inner)


def faults(schema: Any, text: str) -> list[str]:
    """Return the faults of `text` by `schema`, in the validator's words; a huge exponent is not validated."""
    if _ENDLESS_EXPONENT.search(text):
        return []
    value = json.loads(text, parse_float=Decimal)
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    judge = jsonschema.Draft202012Validator(exact, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    with localcontext(Context(prec=20_000)):
        return [error.message for error in judge.iter_errors(value)]
