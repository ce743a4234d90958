"""Values of a model's description, read by name and refused by name.

This module has the wording of the refusals. One class reads config.json, its parts and GGUF metadata, which differ in how a
message spells a name. It does not know what the values mean.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import attrs
import numpy as np

from tlserve.errors import ModelRefused

LEAST, MOST = 1e-13, 1e12
"""Every number in a known model is between these, and arithmetic with them stays finite."""


@attrs.frozen
class Fields:
    """Values by name; `prefix` comes before a name in a message. A value of null counts as missing."""

    values: Mapping[str, object]
    prefix: str

    def get(self, name: str) -> object:
        """Return the value, None where there is none; an array of GGUF metadata is returned as a list."""
        value = self.values.get(name)
        return value.tolist() if isinstance(value, np.ndarray) else value

    def has(self, name: str) -> bool:
        """Return whether there is a value."""
        return self.values.get(name) is not None

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Return the whole number `name`, between `low` and `high`; `default` is not checked against them."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, list) and value and value.count(value[0]) == len(value):
            value = value[0]  # one for each layer, all equal
        if isinstance(value, list):
            raise ModelRefused(f"{self.prefix}{name} differs from layer to layer, which is not served")
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.refusal(name, f"must be a whole number between {low} and {high}, not {value!r:.40}")
        return value

    def integers(self, name: str, count: int, low: int, high: int, default: int | None = None) -> tuple[int, ...]:
        """Return `count` whole numbers: the list `name`, or as often the one number, or `default`."""
        value = self.get(name)
        if not isinstance(value, list):
            return (self.integer(name, low, high, default),) * count
        if len(value) != count or not all(type(number) is int and low <= number <= high for number in value):
            raise self.refusal(name, f"must be whole numbers between {low} and {high} for each of {count} layers")
        return tuple(value)

    def positive(self, name: str, default: float | None = None) -> float:
        """Return the number above 0 called `name`."""
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not LEAST <= value <= MOST:
            raise self.refusal(name, f"must be a number above 0, within {LEAST:g} and {MOST:g}, not {value!r:.40}")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return the truth value `name`."""
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.refusal(name, f"must be true or false, not {value!r:.40}")
        return value

    def refuse_unless(self, name: str, allowed: Container[object], served: str) -> None:
        """Refuse a value of `name` that is neither absent nor one of `allowed`; `served` names what is served."""
        value = self.get(name)
        if value is not None and (isinstance(value, (list, dict)) or value not in allowed):
            raise self.refusal(name, f"{value!r:.60} is not served; served: {served}")

    def refusal(self, name: str, fault: str) -> ModelRefused:
        """Return the refusal of `name`."""
        return ModelRefused(f"{self.prefix}{name} {fault}")
