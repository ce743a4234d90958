"""The page of every setting, made from the settings classes: `python -m docs.make.settings_page`.

Owns the words around the tables; `docs/reference/settings.md` is its output, and a test keeps it current.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterable, Mapping

import attrs

from tlserve.config.declared import Declared, declared_models, declared_settings
from tlserve.config.settings import OWN_KEYS, Settings

_HEAD = """\
# Settings

This page is made from `tlserve/config/settings.py` by `python -m docs.make.settings_page`; the same facts for programs are
`specs/runtime.schema.json`.

A setting has one value, from the last of these that gives it:

1. its default, below;
2. the file: `tlserve --config runtime.toml`, a table for each section, `max_num_seqs = 8` below `[engine]`;
3. the environment: `TL_ENGINE__MAX_NUM_SEQS=8`, table and key in capitals, two underscores between them;
4. the command line: `--set engine.max_num_seqs=8`, or one of the shorter arguments (`--model`, `--port`, ...).

In the environment and on the command line the items of a list are separated by commas. A path that stands in a file and is
relative is looked for beside the file first. `tlserve check-config` prints what is in effect and where each value comes from. A
value that is refused keeps the server from starting (exit code 4); all refusals are listed at once.
"""

_MODELS = """
## [[models]]

Models that are served beside the one of `[engine]`, one table each; the request's `model` picks. A table must have `model_dir`,
and may have the keys of `[engine]` that are a model's. These begin at their defaults: {own}. Where it is silent about others,
`[engine]` says what holds: {others}.
"""


def settings_page() -> str:
    """Return the page."""
    tables = "".join(_section(table, rows) for table, rows in declared_settings().items())
    own = [key for key in declared_models() if key in OWN_KEYS]
    others = [key for key in declared_models() if key not in OWN_KEYS]
    return _HEAD + tables + _MODELS.format(own=_listed(own), others=_listed(others))


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


def _section(table: str, rows: Mapping[str, Declared]) -> str:
    cls: type[attrs.AttrsInstance] = typing.get_type_hints(Settings)[table]
    about = (cls.__doc__ or "").splitlines()[0].partition(": ")[2]
    head = "| key | default | takes | meaning |\n|---|---|---|---|\n"
    return f"\n## [{table}]\n\n{about[:1].upper()}{about[1:]}\n\n{head}" + "".join(_row(row) for row in rows.values())


def _row(row: Declared) -> str:
    default = list(row.default) if isinstance(row.default, tuple) else row.default
    cells = (f"`{row.key}`", f"`{json.dumps(default)}`", _takes(row), row.about)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _takes(row: Declared) -> str:
    if row.choices:
        return ", ".join(f"`{choice}`" for choice in row.choices)
    unit = f" {row.unit}" if row.unit else ""
    if row.low is not None and row.high is not None:
        return f"{row.low} to {row.high}{unit}"
    return f"{row.kind.called}{unit}"


if __name__ == "__main__":
    print(settings_page(), end="")
