"""The strategies give every field of a class values of its type, and refuse unknown types."""

from typing import Any

import attrs
import pytest
from hypothesis import given, settings

from tests.kit.chat.field_values import values_of
from tlserve.generation import Finish, GenerationRequest


@attrs.frozen
class Odd:
    field: Any = None


def seen(kind: Any) -> list[Any]:
    """Return a hundred values, the same ones each time."""
    values = []

    @settings(max_examples=100, derandomize=True, database=None)
    @given(values_of(kind))
    def see(value: Any) -> None:
        values.append(value)

    see()
    return values


def test_every_field_gets_something_other_than_its_default() -> None:
    plain, requests = GenerationRequest(prompt=(), max_tokens=0, seed=0), seen(GenerationRequest)
    fields = [field.name for field in attrs.fields(GenerationRequest)]
    assert [name for name in fields if all(getattr(given, name) == getattr(plain, name) for given in requests)] == []


def test_every_member_of_an_enumeration_occurs() -> None:
    assert set(seen(Finish)) == set(Finish)


def test_an_unknown_type_is_reported_at_once() -> None:
    with pytest.raises(TypeError, match="no values are known"):
        values_of(Odd)
