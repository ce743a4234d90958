"""The validator of schemas finds wrong answers and accepts right ones."""

from typing import Any

import pytest

from tests.kit.chat.json_schemas import faults


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "number", "multipleOf": 0.1}, "0.3", "0.35"),
        ({"items": {"type": "number", "minimum": 5}}, "[5, 6.5]", "[5, 4.9]"),
        ({"items": {"format": "date"}}, '["2024-02-29"]', '["2024-02-30"]'),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"maxLength": 1}}}, '"\u00e9"', '"ab"'),
    ],
)
def test_the_validator_distinguishes_right_from_wrong(schema: dict[str, Any], right: str, wrong: str) -> None:
    assert faults(schema, right) == []
    assert faults(schema, wrong) != []


def test_an_exponent_beyond_every_number_is_not_validated() -> None:
    assert faults({"maximum": 1}, "1e99999999999999999999") == []
