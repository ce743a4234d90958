"""The declared settings as a table, and the check of one value against its row.

Owns reading the attrs classes of `tlserve.config.settings`, the names of the types, and the messages about wrong values. Does not
know where a value came from: `tlserve.config.load` puts the source in front.
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tlserve.config.settings import SERVER_KEYS, Settings
from tlserve.errors import SettingsError

MODELS = "models"


class Refused(Exception):
    """A value that its setting does not take; the text says why, and which values it takes."""


@attrs.frozen
class SettingType:
    """A type of setting: its name for people, and how a TOML value or a text is converted (None: it cannot be)."""

    called: str
    schema: Mapping[str, object]
    of_toml: Callable[[object], object | None]
    of_text: Callable[[str], object | None]


@attrs.frozen(kw_only=True)
class Declared:
    """One setting: a row of the table. A key in a table of the table has a dot: "sampling.temperature" of [engine]."""

    table: str
    key: str
    kind: SettingType
    default: Any
    about: str
    unit: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    check: Callable[[Any], object] | None
    is_path: bool
    is_secret: bool

    @property
    def name(self) -> str:
        """The name with its table, as on the command line."""
        return f"{self.table}.{self.key}"


def _whole_number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _number(value: object) -> float | None:
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None  # type: ignore[arg-type]


def _number_text(text: str) -> float | None:
    try:
        return _number(float(text))
    except ValueError:
        return None


def _truth(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _text_list(value: object) -> tuple[str, ...] | None:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    return None


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


KINDS: dict[object, SettingType] = {
    str: SettingType(
        "a text", {"type": "string"}, lambda value: value if isinstance(value, str) else None, lambda text: text
    ),
    int: SettingType(
        "a whole number", {"type": "integer"}, lambda value: value if type(value) is int else None, _whole_number
    ),
    float | None: SettingType("a number", {"type": "number"}, _number, _number_text),
    bool: SettingType(
        "true or false", {"type": "boolean"}, lambda value: value if isinstance(value, bool) else None, _truth
    ),
    tuple[str, ...]: SettingType("a list of texts", {"type": "array", "items": {"type": "string"}}, _text_list, _split),
}
KINDS[int | None] = KINDS[int]


@functools.cache
def declared_settings() -> dict[str, dict[str, Declared]]:
    """Return every setting: table name -> key -> row, in the order of the classes."""
    tables = typing.get_type_hints(Settings)
    return {table: _rows(table, cls) for table, cls in tables.items() if attrs.has(cls)}


@functools.cache
def declared_models() -> dict[str, Declared]:
    """Return every setting of a [[models]] table: those of [engine] that belong to a model."""
    rows = declared_settings()["engine"].items()
    return {key: attrs.evolve(row, table=MODELS) for key, row in rows if key not in SERVER_KEYS}


def _rows(table: str, cls: type[attrs.AttrsInstance], within: str = "") -> dict[str, Declared]:
    hints = typing.get_type_hints(cls)
    rows: dict[str, Declared] = {}
    for field in attrs.fields(cls):
        key, hint = within + field.name, hints[field.name]
        if attrs.has(hint):
            rows |= _rows(table, hint, f"{key}.")
        else:
            rows[key] = Declared(table=table, key=key, kind=KINDS[hint], default=field.default, **field.metadata)
    return rows


def evolved(settings: Any, given: Mapping[str, Any]) -> Any:
    """Return `settings` with the values of `given`, whose keys can have a dot."""
    own = {key: value for key, value in given.items() if "." not in key}
    for table in {key.partition(".")[0] for key in given if "." in key}:
        inner = {key.partition(".")[2]: value for key, value in given.items() if key.startswith(f"{table}.")}
        own[table] = evolved(getattr(settings, table), inner)
    return attrs.evolve(settings, **own)


def checked_toml(row: Declared, value: object) -> object:
    """Return a TOML value as the setting's type; raises `Refused`."""
    typed = row.kind.of_toml(value)
    if typed is None:
        given = "the given value" if row.is_secret else _called(value)
        raise Refused(f"must be {row.kind.called}, not {given}")
    return _bounded(row, typed)


def checked_text(row: Declared, text: str) -> object:
    """Return the text of a variable or an argument as the setting's type; raises `Refused`."""
    typed = row.kind.of_text(text)
    if typed is None:
        raise Refused(f"must be {row.kind.called}, not {text!r}")
    return _bounded(row, typed)


def _bounded(row: Declared, value: Any) -> object:
    if row.choices and value not in row.choices:
        raise Refused(f"must be one of {', '.join(row.choices)}, not {value!r}")
    if row.low is not None and value < row.low:
        raise Refused(f"must be at least {row.low:_}{_unit(row)}, not {value:_}")
    if row.high is not None and value > row.high:
        raise Refused(f"must be at most {row.high:_}{_unit(row)}, not {value:_}")
    _check_form(row, value)
    return value


def _check_form(row: Declared, value: Any) -> None:
    if row.check is None:
        return
    try:
        row.check(value)
    except SettingsError as error:
        raise Refused(error.message) from None


def _unit(row: Declared) -> str:
    return f" {row.unit}" if row.unit else ""


def _called(value: object) -> str:
    """Describe a TOML value as its author would: its kind, and the value if it is short."""
    kinds = {
        bool: "a boolean",
        str: "a text",
        int: "a whole number",
        float: "a fraction",
        list: "a list",
        dict: "a table",
    }
    kind = kinds.get(type(value), type(value).__name__)
    return kind if isinstance(value, list | dict) else f"{kind} ({str(value)[:40]!r})"
