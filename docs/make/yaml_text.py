"""A tree of mappings, lists and scalars as readable YAML.

Owns the layout: mappings as blocks, short lists and all scalars as JSON. Source: YAML 1.2, which includes JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_PLAIN_KEY = re.compile(r"[A-Za-z_$/][A-Za-z0-9_$/{}.-]*")
_SHORT = 88


def yaml_text(value: Mapping[str, Any]) -> str:
    """Return a mapping as a YAML document."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    """Yield the lines of a value that does not fit on one line."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            yield from _entry(f"{_key(key)}:", member)
    else:
        for item in value:
            yield from _item(item)


def _entry(head: str, value: Any) -> Iterator[str]:
    if _is_flow(value):
        yield f"{head} {json.dumps(value, ensure_ascii=False)}"
    else:
        yield head
        yield from (f"  {line}" for line in _lines(value))


def _item(value: Any) -> Iterator[str]:
    if _is_flow(value):
        yield f"- {json.dumps(value, ensure_ascii=False)}"
    else:
        first, *rest = _lines(value)
        yield f"- {first}"
        yield from (f"  {line}" for line in rest)


def _is_flow(value: Any) -> bool:
    return not isinstance(value, Mapping | list) or not value or len(json.dumps(value)) <= _SHORT


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) else json.dumps(key)
