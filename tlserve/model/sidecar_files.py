"""The files next to a model's weights, in any format of the weights.

Reads them up to a limit, and takes from them the chat template, the ids that end an answer, the sampling defaults. The
template is generation_config.json's (our own extension), else chat_template.jinja, else chat_template.json's, else
tokenizer_config.json's. A file can have several named ones: `default`, and `tool_use` for requests with tools. Knows nothing of
templates and weights.

Source: the Hugging Face documentation, "Chat templates", for the names of the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from tlserve.errors import ModelRefused
from tlserve.model.sampling_defaults import GENERATION_CONFIG, read_sampling
from tlserve.sampling_params import SamplingParams

MAX_JSON_BYTES = 4 << 20
MAX_JSON_MEMBERS = 1 << 18
MAX_TEMPLATE_BYTES = 1 << 20
TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_JSON = "chat_template.json"
TOOL_USE = "tool_use"
TOOL_TEMPLATE_FILE = "additional_chat_templates/tool_use.jinja"


@attrs.frozen(kw_only=True)
class Sidecar:
    """The contents of the files next to the weights; None and empty where they say nothing.

    `tool_template`: the template for requests with tools, if it is another one. `notes`: what they request and is not served, a
    sentence each.
    """

    chat_template: str | None = None
    tool_template: str | None = None
    eos_ids: frozenset[int] = frozenset()
    sampling: SamplingParams = attrs.field(factory=SamplingParams)
    notes: tuple[str, ...] = ()


def read_sidecar(directory: Path, vocabulary_size: int) -> Sidecar:
    """Read the files that exist; raises `ModelRefused` where one is damaged."""
    generation = read_json(directory / GENERATION_CONFIG)
    sampling, notes = read_sampling(generation)
    return Sidecar(
        chat_template=_chat_template(directory, generation),
        tool_template=_tool_template(directory, generation),
        eos_ids=token_ids(generation.get("eos_token_id"), vocabulary_size, f"{GENERATION_CONFIG}: eos_token_id"),
        sampling=sampling,
        notes=notes,
    )


def read_json(path: Path) -> Mapping[str, object]:
    """Return the object in the file, {} where there is no file; raises `ModelRefused`."""
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelRefused(f"{path.name} is larger than {MAX_JSON_BYTES} bytes")
        value = parse_json(path.read_bytes(), MAX_JSON_MEMBERS)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelRefused(f"{path.name} cannot be read: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise ModelRefused(f"{path.name} must hold a JSON object")
    return value


def parse_json(raw: bytes | str, most: int, pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Return the document in `raw`; raises ValueError before it makes more than about `most` members.

    An empty list takes 3 bytes in a file and 72 in memory, so the size of a file alone does not bound its document.
    """
    text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
    members = text.count(",") + 2 * (text.count("[") + text.count("{"))  # a list takes more than a number
    if members > most:
        raise ValueError(f"it has about {members} members; at most {most} are read")
    return json.loads(text, object_pairs_hook=pairs_hook)


def read_text(path: Path, most_bytes: int) -> str:
    """Return the text of a file; raises `ModelRefused` for one that is too large or not UTF-8."""
    try:
        if path.stat().st_size > most_bytes:
            raise ModelRefused(f"{path.name} is larger than {most_bytes} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelRefused(f"{path.name} cannot be read: {str(error)[:200]}") from error


def token_ids(value: object, vocabulary_size: int, what: str) -> frozenset[int]:
    """Return ids that are given as one or as a list, or an empty set."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocabulary_size:
            raise ModelRefused(f"{what} must be ids below {vocabulary_size}")
    return frozenset(ids)


def _chat_template(directory: Path, generation: Mapping[str, object]) -> str | None:
    """Return the template of the first file that has one."""
    template = _template(generation, GENERATION_CONFIG)
    if template is None and (directory / TEMPLATE_FILE).is_file():
        return read_text(directory / TEMPLATE_FILE, MAX_TEMPLATE_BYTES)
    for name in (TEMPLATE_JSON, TOKENIZER_CONFIG):
        template = _template(read_json(directory / name), name) if template is None else template
    return template


def _tool_template(directory: Path, generation: Mapping[str, object]) -> str | None:
    """Return the template for requests with tools of the first file that has one."""
    if (directory / TOOL_TEMPLATE_FILE).is_file():
        return read_text(directory / TOOL_TEMPLATE_FILE, MAX_TEMPLATE_BYTES)
    for name in (GENERATION_CONFIG, TEMPLATE_JSON, TOKENIZER_CONFIG):
        config = generation if name == GENERATION_CONFIG else read_json(directory / name)
        if isinstance(config.get("chat_template"), list):
            return _template(config, name, TOOL_USE)
    return None


def _template(config: Mapping[str, object], name: str, which: str = "default") -> str | None:
    """Return the template of one file; of several named ones, the one called `which`."""
    value = config.get("chat_template")
    if isinstance(value, list):
        named = {str(t.get("name")): t.get("template") for t in value if isinstance(t, dict)}
        value = named.get(which)
    if value is None or isinstance(value, str):
        return value
    raise ModelRefused(f"{name}: chat_template must be a string")
