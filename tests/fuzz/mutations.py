"""Change valid input a little: bytes, text, and JSON documents by their structure, each from a `random.Random`.

Fast, because a search has millions of inputs: a document is rebuilt only along the path of the change.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, TypeVar

Units = TypeVar("Units", str, bytes)

LONG_REPEAT_CHANCE = 0.002
LONG_REPEAT_LENGTH = 1 << 15
FAR_DEPTHS = (3, 40, 150, 3000)

NUMBERS: Sequence[int | float] = (
    *(0, 1, -1, 2, 3, 7, 64, 127, 255, 256, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32),
    *((1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**30, -(1 << 31), -(1 << 63), 10**400),
    *(0.0, -0.0, 0.5, 1e-9, 1e308, 5e-324, -1.5, float("inf"), float("-inf"), float("nan")),
)
TEXTS: Sequence[str] = (
    *(
        "",
        " ",
        "a",
        "0",
        "-1",
        "null",
        "true",
        "\0",
        "\n",
        "\r\n",
        "\t",
        "é",
        "\u2028",
        "\U0001f600",
        "\ud800",
        "\udfff",
    ),
    *(
        "a" * 300,
        "1" * 5000,
        "[" * 5000,
        '{"a":' * 3000,
        "../..",
        "/",
        "\\",
        '"',
        "'",
        "{",
        "}",
        "[",
        "]",
        "<",
        ">",
        "%",
        "{{",
        "{%",
        "$ref",
        "#",
        "#/",
        "__class__",
    ),
)
SMALL: Sequence[Any] = (None, True, False, [], {}, [[]], [None], {"": None}, [1, "a", {}], {"a": {"b": []}})
BYTES: Sequence[bytes] = (
    *(
        b"\0",
        b"\xff",
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\xff" * 8,
        b"\0" * 8,
        b"\x7f" + b"\xff" * 7,
        b"\x80",
        b"\xc0\x80",
    ),
    *(
        b"\r\n",
        b"\n",
        b" ",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xef\xbb\xbf",
        b"\x01\0\0\0\0\0\0\0",
        b"\0\0\0\x80",
    ),
)


def changed_bytes(rng: random.Random, data: bytes, words: Sequence[bytes] = BYTES) -> bytes:
    """Return `data` with one to eight changes: bytes replaced, removed, doubled, moved, or `words` put in."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        data = _change_slice(rng, data, rng.choice(words) if rng.random() < 0.7 else rng.randbytes(rng.randrange(1, 9)))
    if rng.random() < LONG_REPEAT_CHANCE and data:
        start, end = _slice(rng, len(data))
        data = data[:start] + data[start:end] * (LONG_REPEAT_LENGTH // max(1, end - start)) + data[end:]
    return data


def changed_text(rng: random.Random, text: str, words: Sequence[str] = TEXTS) -> str:
    """Return `text` with one to eight changes, as `changed_bytes` makes them."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        word = rng.choice(words) if rng.random() < 0.7 else rng.choice(TEXTS)
        text = _change_slice(rng, text, word)
    if rng.random() < LONG_REPEAT_CHANCE and text:
        start, end = _slice(rng, len(text))
        text = text[:start] + text[start:end] * (LONG_REPEAT_LENGTH // max(1, end - start)) + text[end:]
    return text


def _slice(rng: random.Random, length: int) -> tuple[int, int]:
    start = rng.randrange(length + 1)
    return start, min(length, start + rng.choice((0, 1, 1, 2, 4, 8, 16, 64)))


def _change_slice(rng: random.Random, data: Units, word: Units) -> Units:
    start, end = _slice(rng, len(data))
    kind = rng.randrange(6)
    if kind == 0:
        return data[:start] + data[end:]
    if kind == 1:
        return data[:end] + data[start:end] + data[end:]
    if kind == 2:
        return data[:start] if rng.random() < 0.3 else data[:start] + word + data[end:]
    if kind == 3:
        other, _ = _slice(rng, len(data))
        return data[:other] + data[start:end] + data[other:]
    return data[:start] + word + data[start if kind == 4 else end :]


# --- documents -----------------------------------------------------------------------------------------------------------


def changed_document(rng: random.Random, document: Any, words: Sequence[Any] = SMALL) -> Any:
    """Return the JSON document with one to three of its values replaced, removed, renamed, nested or moved."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        document = _changed(rng, document, words, document)
    return document


def _changed(rng: random.Random, value: Any, words: Sequence[Any], root: Any) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(list(value))
        return _changed_member(rng, value, name, words, root)
    if isinstance(value, list) and value and rng.random() < 0.85:
        index = rng.randrange(len(value))
        if rng.random() < 0.1:
            return value[:index] + value[index + 1 :] if rng.random() < 0.5 else [*value, value[index]]
        return [*value[:index], _changed(rng, value[index], words, root), *value[index + 1 :]]
    return other_value(rng, value, words, root)


def _changed_member(rng: random.Random, value: dict[str, Any], name: str, words: Sequence[Any], root: Any) -> Any:
    kind = rng.random()
    if kind < 0.08:
        return {key: inner for key, inner in value.items() if key != name}
    if kind < 0.12:
        return {**value, rng.choice(TEXTS): value[name]}
    if kind < 0.16:
        return {**value, **some_object(rng, root)}
    return {**value, name: _changed(rng, value[name], words, root)}


def some_object(rng: random.Random, root: Any) -> dict[str, Any]:
    """Return an object that is somewhere in `root`."""
    place = _some_place(rng, root)
    return place if isinstance(place, dict) else {}


def _some_place(rng: random.Random, value: Any) -> Any:
    while isinstance(value, (dict, list)) and value and rng.random() < 0.7:
        value = rng.choice(list(value.values()) if isinstance(value, dict) else value)
    return value


def other_value(rng: random.Random, value: Any, words: Sequence[Any] = SMALL, root: Any = None) -> Any:
    """Return a value in the place of `value`: near to it, of another type, from elsewhere in `root`, or nested deeply."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:
        return changed_text(rng, value) if isinstance(value, str) else rng.choice(TEXTS)
    if kind == 2:
        return rng.choice(SMALL)
    if kind == 3 and isinstance(value, (int, float)):
        return value + rng.choice((-1, 1, 0.5)) if abs(value) < 1e15 else -value
    if kind == 4:
        return _some_place(rng, root)
    if kind == 5 and rng.random() < 0.1:
        return nested(rng, value)
    return rng.choice(words)


def nested(rng: random.Random, value: Any) -> Any:
    """Return `value` inside many lists or objects."""
    as_list = rng.random() < 0.5
    for _ in range(rng.choice(FAR_DEPTHS[:3])):
        value = [value] if as_list else {"a": value}
    return value


def written(rng: random.Random, document: Any) -> bytes:
    """Return the document as JSON; one in eight is then damaged as text, and a few are nested more deeply than can be read."""
    raw = json.dumps(document).encode()
    kind = rng.random()
    if kind < 0.125:
        return changed_bytes(rng, raw)
    if kind < 0.13:
        depth = rng.choice(FAR_DEPTHS)
        return b"[" * depth + raw + b"]" * depth
    return raw
