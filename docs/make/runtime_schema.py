"""The JSON schema of runtime.toml, `specs/runtime.schema.json`, made from the settings classes. Source: JSON Schema 2020-12."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tlserve.config.declared import MODELS, Declared, declared_models, declared_settings


def runtime_schema() -> dict[str, object]:
    """Return the schema of a whole runtime.toml."""
    tables = {table: _table(rows) for table, rows in declared_settings().items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "runtime.toml",
        **_closed_object({**tables, MODELS: _models()}),
    }


def _models() -> dict[str, object]:
    """Return the schema of the [[models]] tables, which can leave out what [engine] has."""
    table = _table(declared_models())
    about = "models served in addition to that of [engine]; the `model` of a request selects one"
    return {"type": "array", "description": about, "items": {**table, "required": ["model_dir"]}}


def runtime_schema_text() -> str:
    """Return the schema as the text of its file."""
    return json.dumps(runtime_schema(), indent=2) + "\n"


def _table(rows: Mapping[str, Declared]) -> dict[str, object]:
    """Return the schema of a table; keys with a dot belong to a table inside it."""
    properties: dict[str, object] = {key: _property(row) for key, row in rows.items() if "." not in key}
    inner: dict[str, dict[str, object]] = {}
    for key, row in rows.items():
        name, dot, below = key.partition(".")
        if dot:
            inner.setdefault(name, {})[below] = _property(row)
    return _closed_object({**properties, **{name: _closed_object(table) for name, table in inner.items()}})


def _closed_object(properties: Mapping[str, object]) -> dict[str, object]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _property(row: Declared) -> dict[str, object]:
    unit = f" [{row.unit}]" if row.unit else ""
    bounds = {"minimum": row.low, "maximum": row.high, "enum": list(row.choices) or None}
    return {
        **row.kind.schema,
        "description": row.about + unit,
        **({} if row.default is None else {"default": _json_value(row.default)}),
        **{name: bound for name, bound in bounds.items() if bound is not None},
    }


def _json_value(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
