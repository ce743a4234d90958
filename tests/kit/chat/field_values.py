"""Hypothesis strategies from the declared types of attrs classes: every field gets values, none its default by accident.

    request = values_of(GenerationRequest)         # a strategy of requests

A field of an unknown type fails when the strategy is made, so that no field is forgotten. Floats are finite, because values
that are compared must equal themselves.
"""

import enum
import types
import typing
from collections.abc import Mapping

import attrs
from hypothesis import strategies as st

_SMALL = 4

_PLAIN = {
    int: st.integers(-(1 << 63), (1 << 64) - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=8),
    bool: st.booleans(),
    type(None): st.none(),
}


def values_of(kind: typing.Any) -> st.SearchStrategy:
    """Return a strategy of values of `kind`: plain data, tuples, sets, mappings, enums, unions and attrs classes of them."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if attrs.has(kind):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{field.name: values_of(hints[field.name]) for field in attrs.fields(kind)})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    return _values_of_generic(typing.get_origin(kind), typing.get_args(kind))


def _values_of_generic(origin: typing.Any, arguments: tuple[typing.Any, ...]) -> st.SearchStrategy:
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is tuple and arguments[-1:] == (...,):
        return st.lists(values_of(arguments[0]), max_size=_SMALL).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin is frozenset:
        return st.frozensets(values_of(arguments[0]), max_size=_SMALL)
    if origin is Mapping:
        return st.dictionaries(*map(values_of, arguments), max_size=_SMALL)
    raise TypeError(f"no values are known for {origin} of {arguments}")
