"""Settings from their four layers: defaults < file < environment < command line.

Owns the precedence (only the file has [[models]] tables), the names of the layers, and the collection of all refusals into one
error. Does not know what a setting means. The environment is an argument; only the file is read here.
"""

from __future__ import annotations

import difflib
import os.path
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard

import attrs

from tlserve.config.declared import (
    MODELS,
    Declared,
    Refused,
    checked_text,
    checked_toml,
    declared_models,
    declared_settings,
    evolved,
)
from tlserve.config.environment import is_not_a_setting, meant_variable
from tlserve.config.models import additional_model, model_refusals
from tlserve.config.settings import Settings
from tlserve.config.toml_file import read_toml
from tlserve.errors import SettingsError

_FEW = 12


@attrs.frozen
class Given:
    """One value as it was given, with its source and its setting; `read` checks and converts it."""

    source: str
    table: str
    key: str
    read: Callable[[Declared], object]


@attrs.frozen
class Loaded:
    """The settings, and for each one that was given ("http.max_body_bytes") the source that won."""

    settings: Settings
    sources: Mapping[str, str]


def load_settings(path: Path | None, environ: Mapping[str, str], overrides: Sequence[tuple[str, str]]) -> Settings:
    """Return the effective settings; raises `SettingsError` with every refusal of every layer.

    `path` is a runtime.toml or None, `environ` holds the `TL_<TABLE>__<KEY>` variables, `overrides` the pairs of the command
    line: a key without a table is one of [engine].
    """
    return load_with_sources(path, environ, overrides).settings


def load_with_sources(path: Path | None, environ: Mapping[str, str], overrides: Sequence[tuple[str, str]]) -> Loaded:
    """Do the same as `load_settings`, and keep the source of each value."""
    refusals: list[str] = []
    given = chain(_file_layer(path, refusals), _environment_layer(environ, refusals), _command_line_layer(overrides))
    values: dict[str, dict[str, object]] = {table: {} for table in declared_settings()}
    sources: dict[str, str] = {}
    for item in given:
        _take(item, values, sources, refusals)
    settings = _settings(values)
    refusals += model_refusals(settings)
    if refusals:
        raise SettingsError(tuple(refusals))
    return Loaded(settings, sources)


def _settings(values: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Build the tables; a key that was not given keeps its default."""
    defaults = Settings()
    tables: dict[str, Any] = {
        table: evolved(getattr(defaults, table), given)
        for table, given in values.items()
        if given and table in declared_settings()
    }
    models = [given for table, given in values.items() if table.startswith(f"{MODELS}[")]
    engine = tables.get("engine", defaults.engine)
    return attrs.evolve(defaults, **tables, models=tuple(additional_model(engine, given) for given in models))


def _take(item: Given, values: dict[str, dict[str, object]], sources: dict[str, str], refusals: list[str]) -> None:
    """Check one given value and let it win over the layers before it."""
    rows = declared_models() if item.table.startswith(f"{MODELS}[") else declared_settings().get(item.table, {})
    row, name = rows.get(item.key), f"{item.table}.{item.key}"
    if row is None:
        refusals.append(f"{item.source}: {_unknown(item)}")
        return
    try:
        values.setdefault(item.table, {})[item.key] = item.read(row)
        sources[name] = item.source
    except Refused as reason:
        refusals.append(f"{item.source}: {name} {reason}")


def _unknown(item: Given) -> str:
    tables = declared_settings() | ({item.table: declared_models()} if item.table.startswith(f"{MODELS}[") else {})
    if item.table not in tables:
        return f"there is no table [{item.table}]{_nearest(item.table, tables)}"
    elsewhere = [table for table, rows in tables.items() if item.key in rows]
    hint = f"; it belongs to [{elsewhere[0]}]" if elsewhere else _nearest(item.key, tables[item.table])
    return f"there is no setting {item.key!r} in [{item.table}]{hint}"


def _nearest(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name.lower(), known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(known)}" if len(known) <= _FEW else "; `tlserve check-config` prints all of them"


# --- the file --------------------------------------------------------------------------------------------------------


def _file_layer(path: Path | None, refusals: list[str]) -> Iterator[Given]:
    if path is None:
        return
    try:
        document = read_toml(path)
    except SettingsError as error:
        refusals.extend(error.refusals)
    else:
        yield from _file_values(path, document, refusals)


def _file_values(path: Path, document: Mapping[str, object], refusals: list[str]) -> Iterator[Given]:
    for table, content in document.items():
        if table == MODELS and _is_list_of_tables(content):
            yield from _model_values(path, content)
        elif table == MODELS and isinstance(content, dict):
            refusals.append(
                f"{path}: there is no table [{MODELS}]; write [[{MODELS}]] above the settings of each model"
            )
        elif isinstance(content, dict) and not content and table not in declared_settings():
            refusals.append(f"{path}: there is no table [{table}]{_nearest(table, declared_settings())}")
        elif isinstance(content, dict):
            yield from _table_values(path, table, content)
        else:
            refusals.append(f"{path}: {_outside_a_table(table)}")


def _table_values(path: Path, table: str, content: Mapping[str, object]) -> Iterator[Given]:
    """Yield the values of a table, and of the tables in it that hold settings, under "inner.key"."""
    inner = {key.partition(".")[0] for rows in declared_settings().values() for key in rows if "." in key}
    for key, value in content.items():
        if key in inner and isinstance(value, dict):
            yield from (Given(str(path), table, f"{key}.{k}", _toml_reader(path, v)) for k, v in value.items())
        else:
            yield Given(str(path), table, key, _toml_reader(path, value))


def _is_list_of_tables(content: object) -> TypeGuard[list[dict[str, object]]]:
    return isinstance(content, list) and all(isinstance(item, dict) for item in content)


def _model_values(path: Path, tables: list[dict[str, object]]) -> Iterator[Given]:
    for index, table in enumerate(tables):
        # a missing model_dir counts as empty, so that an empty table is refused as well
        yield from _table_values(path, f"{MODELS}[{index}]", {"model_dir": "", **table})


def _outside_a_table(key: str) -> str:
    tables = declared_settings()
    if key == MODELS:
        return f"{key!r} must be a list of tables: write [[{key}]] above the settings of each model"
    if key in tables:
        return f"{key!r} must be a table: write [{key}] above its settings"
    homes = [table for table, rows in tables.items() if key in rows]
    return f"{key!r} is not in a table" + (f": write it below [{homes[0]}]" if homes else "")


def _toml_reader(path: Path, value: object) -> Callable[[Declared], object]:
    def read(row: Declared) -> object:
        typed = checked_toml(row, value)
        return _from_folder_of(path, str(typed)) if row.is_path else typed

    return read


def _from_folder_of(file: Path, given: str) -> str:
    """Return a path relative to the file's folder if it exists; else it is a name, or relative to the working directory."""
    place = file.parent / Path(given).expanduser()
    return str(place) if given and os.path.exists(place) else given


# --- the environment and the command line --------------------------------------------------------------------------------


def _environment_layer(environ: Mapping[str, str], refusals: list[str]) -> Iterator[Given]:
    """Yield the variables such as `TL_ENGINE__KEY` and `TL_ENGINE__SAMPLING__KEY`; refuse those that nearly spell one."""
    for name in sorted(environ):
        if is_not_a_setting(name):
            continue
        table, separator, key = name.removeprefix("TL_").partition("__")
        if name.startswith("TL_") and table and separator:
            yield Given(f"variable {name}", table.lower(), key.lower().replace("__", "."), _text_reader(environ[name]))
        elif meant := meant_variable(name, _variables()):
            refusals.append(f"variable {name}: there is no such variable; did you mean {meant}?")


def _variables() -> list[str]:
    """Return the name of each setting's variable."""
    return [
        f"TL_{table}__{key.replace('.', '__')}".upper() for table, rows in declared_settings().items() for key in rows
    ]


def _command_line_layer(overrides: Sequence[tuple[str, str]]) -> Iterator[Given]:
    for name, text in overrides:
        table, dot, key = name.partition(".")
        if not dot or name in declared_settings()["engine"]:
            table, key = "engine", name
        yield Given("command line", table, key, _text_reader(text))


def _text_reader(text: str) -> Callable[[Declared], object]:
    return lambda row: checked_text(row, text)
