"""A sentence encoder's own files: the longest text, and how its hidden states become one vector.

Reads modules.json, the pooling's config.json and sentence_bert_config.json; a value that is not served is refused by file and
value. Without modules.json the vector is the mean, not normalised, as in sentence-transformers.
Source: `Transformer`, `Pooling` and `Normalize` of sentence-transformers, whose files have changed little from version 2 to 6.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import attrs

from tlserve.errors import ModelRefused
from tlserve.kernels.interface import PooledRows, Pooling
from tlserve.model.fields import Fields
from tlserve.model.sidecar_files import read_json, read_text

MODULES, SENTENCE_CONFIG, PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
_MAX_MODULES_BYTES = 1 << 16
_SERVED = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_MODES = {"pooling_mode_mean_tokens": PooledRows.MEAN, "pooling_mode_cls_token": PooledRows.FIRST}


@attrs.frozen(kw_only=True)
class SentenceFiles:
    """`longest`: tokens of a text, with those around it; 0: not given. `notes`: requests of the files that are not served."""

    pooling: Pooling
    longest: int
    notes: tuple[str, ...]


def read_sentence_files(directory: Path) -> SentenceFiles:
    """Read the files that exist; raises `ModelRefused`."""
    config = Fields(read_json(directory / SENTENCE_CONFIG), f"{SENTENCE_CONFIG}: ")
    config.refuse_unless("do_lower_case", (False,), "false (tokenizer.json says how a text is split)")
    return SentenceFiles(
        pooling=_pooling(directory),
        longest=config.integer("max_seq_length", 1, 1 << 20, default=0),
        notes=_notes(read_json(directory / PROMPTS)),
    )


def _notes(config: Mapping[str, object]) -> tuple[str, ...]:
    if config.get("default_prompt_name") is None:
        return ()
    return (f"{PROMPTS} requests a prompt before every text; texts are not changed, so send the prompt with them",)


def _pooling(directory: Path) -> Pooling:
    modules = _modules(directory / MODULES)
    if not modules:
        return Pooling(normalised=False)
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if kinds not in _SERVED:
        raise ModelRefused(f"{MODULES} has {', '.join(kinds)}; served: Transformer, Pooling, and Normalize or not")
    folder = modules[1].get("path")
    if not isinstance(folder, str) or not _FOLDER.fullmatch(folder):
        raise ModelRefused(f"{MODULES}: the path {folder!r:.60} of the pooling is not a folder next to it")
    return Pooling(rows=_rows(read_json(directory / folder / "config.json"), folder), normalised=len(kinds) == 3)


def _modules(path: Path) -> list[Mapping[str, object]]:
    """Return the modules in their order, or none without such a file."""
    if not path.is_file():
        return []
    try:
        modules = json.loads(read_text(path, _MAX_MODULES_BYTES))
    except (ValueError, RecursionError) as error:
        raise ModelRefused(f"{MODULES} cannot be read: {str(error)[:200]}") from error
    if not isinstance(modules, list) or not modules or not all(isinstance(module, dict) for module in modules):
        raise ModelRefused(f"{MODULES} must be a list of objects")
    return modules


def _rows(config: Mapping[str, object], folder: str) -> PooledRows:
    """Return which rows are pooled: a flag for each mode, or (since version 5) the mode's name."""
    fields = Fields(config, f"{folder}/config.json: ")
    modes = {name for name in config if name.startswith("pooling_mode_") and fields.flag(name, default=False)}
    if isinstance(named := config.get("pooling_mode"), str):
        modes = {{"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}.get(named, named)}
    if len(modes) != 1 or not modes <= _MODES.keys():
        raise fields.refusal("pooling_mode", f"{', '.join(sorted(modes))!r:.100} is not served; served: mean, cls")
    return _MODES[modes.pop()]
