"""The JSON files that lie beside a model's weights.

Owns their bounded reading and what is taken from them: the chat template (generation_config.json before tokenizer_config.json)
and the ids that end an answer. Refuses to know templates and weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import attrs

from tlserve.errors import ModelRefused

MAX_JSON_BYTES = 4 << 20
GENERATION_CONFIG = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"


@attrs.frozen(kw_only=True)
class Sidecar:
    """What the files beside the weights say; None and empty where they say nothing."""

    chat_template: str | None = None
    eos_ids: frozenset[int] = frozenset()


def read_sidecar(directory: Path, vocabulary_size: int) -> Sidecar:
    """Read both files, where there are any; raises `ModelRefused` where one is damaged."""
    generation = read_json(directory / GENERATION_CONFIG)
    tokenizer = read_json(directory / TOKENIZER_CONFIG)
    template = _template(generation, GENERATION_CONFIG)
    return Sidecar(
        chat_template=_template(tokenizer, TOKENIZER_CONFIG) if template is None else template,
        eos_ids=_eos_ids(generation.get("eos_token_id"), vocabulary_size),
    )


def read_json(path: Path) -> Mapping[str, object]:
    """Return the object in the file, {} where there is no file; raises `ModelRefused`."""
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelRefused(f"{path.name} is larger than {MAX_JSON_BYTES} bytes")
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelRefused(f"{path.name} cannot be read: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise ModelRefused(f"{path.name} must hold a JSON object")
    return value


def _template(config: Mapping[str, object], name: str) -> str | None:
    """Return the template of one file; of a list of named ones, the one called "default"."""
    value = config.get("chat_template")
    if isinstance(value, list):
        named = [t for t in value if isinstance(t, dict) and t.get("name") == "default"]
        value = named[0].get("template") if named else None
    if value is None or isinstance(value, str):
        return value
    raise ModelRefused(f"{name}: chat_template must be a string")


def _eos_ids(value: object, vocabulary_size: int) -> frozenset[int]:
    """Return the ids that end an answer, given as one id or a list."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocabulary_size:
            raise ModelRefused(f"{GENERATION_CONFIG}: eos_token_id must be ids below {vocabulary_size}")
    return frozenset(ids)
