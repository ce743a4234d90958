"""The page of every setting, `docs/reference/settings.md`, made from the settings classes.

Owns the text around the tables.
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

`python -m docs.make` makes this page from `tlserve/config/settings.py`. The same facts for programs are in
`specs/runtime.schema.json`.

The value of a setting comes from the last of these places that has it:

1. its default, below;
2. the file: `tlserve --config runtime.toml`, with a table for each section, such as `max_num_seqs = 8` below `[engine]`;
3. the environment: `TL_ENGINE__MAX_NUM_SEQS=8`, table and key in capitals, with two underscores between them
   (a variable that nearly spells one, such as `TL_ENGINE_MAX_NUM_SEQS`, is refused);
4. the command line: `--set engine.max_num_seqs=8`, or one of the shorter arguments (`--model`, `--port`, ...).

In the environment and on the command line, commas separate the items of a list. A relative path in a file is first looked up in
the folder of that file. `tlserve check-config` prints the values in effect and the source of each. The server does not start with
a wrong value (exit code 4); all wrong values are listed at once.
"""

_MODELS = """
## [[models]]

Models that are served in addition to that of `[engine]`, one table each; the `model` of a request selects one. A table must have
`model_dir` and can have those keys of `[engine]` that belong to a model. If the table does not have them, these keys have their
defaults: {own}. These have the value of `[engine]`: {others}.
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
