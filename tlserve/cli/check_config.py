"""`tlserve check-config`: print the settings in effect as a runtime.toml, with the source of each that was given.

Owns how a setting is written in TOML. The output is a file with the same settings, except for secrets, which are not shown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from operator import attrgetter

from tlserve.cli.settings_arguments import add_settings_arguments, loaded_settings_of
from tlserve.config.declared import MODELS, Declared, declared_models, declared_settings
from tlserve.config.load import Loaded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments: those of `serve` that are settings."""
    add_settings_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings and return 0; raises `SettingsError` as a start would."""
    print(effective_toml(loaded_settings_of(arguments)))
    return 0


def effective_toml(loaded: Loaded) -> str:
    """Return the settings as TOML, with a comment after each one that is not a default."""
    tables = [
        _table(f"[{table}]", table, getattr(loaded.settings, table), rows, loaded)
        for table, rows in declared_settings().items()
    ]
    models = [
        _table(f"[[{MODELS}]]", f"{MODELS}[{index}]", model, declared_models(), loaded)
        for index, model in enumerate(loaded.settings.models)
    ]
    return "\n\n".join(tables + models)


def _table(head: str, name: str, values: object, rows: Mapping[str, Declared], loaded: Loaded) -> str:
    lines = [
        _line(key, attrgetter(key)(values), loaded.sources.get(f"{name}.{key}"), is_secret=row.is_secret)
        for key, row in rows.items()
    ]
    return "\n".join((head, *lines))


def _line(key: str, value: object, source: str | None, *, is_secret: bool) -> str:
    if is_secret:
        return f"# {key} is {'not set' if source is None else f'set, and not shown: {json.dumps(source)[1:-1]}'}"
    if value is None:
        return f"# {key} is not set"
    # a JSON string without escapes beyond ASCII is a TOML basic string; lists and whole numbers are also written alike
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{key} = {text}" + (f"  # {json.dumps(source)[1:-1]}" if source else "")
