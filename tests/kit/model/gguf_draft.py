"""A GGUF file as a draft: its keys and tensors in a list each, so that a test can write what no library writes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import attrs

from tests.kit.model.llama_shape import LlamaShape
from tests.kit.model.tiny_models import tiny_shape, tiny_tensors

U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", U32: "I", 5: "i", F32: "f", BOOL: "?", U64: "Q", 11: "q", 12: "d"}


def packed(value: Any, kind: int) -> bytes:
    """Return a value of a type; a list is an array of that type."""
    if isinstance(value, list):
        return struct.pack("<IQ", kind, len(value)) + b"".join(packed(part, kind) for part in value)
    if kind == STRING:
        raw = value if isinstance(value, bytes) else value.encode()
        return struct.pack("<Q", len(raw)) + raw
    return struct.pack(f"<{_CODES[kind]}", value)


def _kind(value: Any) -> int:
    first = value[0] if isinstance(value, list) else value
    return {str: STRING, bytes: STRING, bool: BOOL, float: F32}.get(type(first), U32)


@attrs.define
class Draft:
    """What a file will have: keys as (name, type, bytes), tensors as (name, dimensions, type, data)."""

    keys: list[tuple[str, int, bytes]]
    tensors: list[tuple[str, tuple[int, ...], int, bytes]]
    alignment: int = 32
    version: bytes = struct.pack("<I", 3)

    def put(self, name: str, value: Any, kind: int | None = None) -> None:
        """Replace or add a key; None removes it."""
        self.keys = [key for key in self.keys if key[0] != name]
        if value is not None:
            part = _kind(value) if kind is None else kind
            self.keys.append((name, ARRAY if isinstance(value, list) else part, packed(value, part)))

    def written(self) -> bytes:
        """Return the file."""
        body, entries = b"", b""
        for name, dimensions, kind, data in self.tensors:
            entries += packed(name, STRING) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
            entries += struct.pack("<IQ", kind, len(body))
            body += data + bytes(-len(data) % self.alignment)
        head = b"GGUF" + self.version + struct.pack("<QQ", len(self.tensors), len(self.keys))
        head += (
            b"".join(packed(name, STRING) + struct.pack("<I", kind) + raw for name, kind, raw in self.keys) + entries
        )
        return head + bytes(-len(head) % self.alignment) + body


def tiny_draft(vocabulary: Mapping[str, Any] | None = None) -> Draft:
    """Return the tiny llama with the byte tokenizer, or with the keys of `vocabulary` and a row for each of its tokens."""
    tokens = (vocabulary or {}).get("tokens", [""] * 256)
    shape: LlamaShape = tiny_shape(vocabulary=len(tokens))
    made = Draft([], [])
    for name, value in {
        "general.architecture": "llama",
        "llama.context_length": shape.context_tokens,
        "llama.embedding_length": shape.hidden,
        "llama.block_count": shape.layers,
        "llama.feed_forward_length": shape.intermediate,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.key_length": shape.head_size,
        "llama.attention.layer_norm_rms_epsilon": shape.epsilon,
        **{f"tokenizer.ggml.{key}": value for key, value in (vocabulary or {"model": "bytes"}).items()},
    }.items():
        made.put(name, value, 5 if name.endswith("token_type") else None)
    for name, tensor in tiny_tensors(shape).items():
        made.tensors.append((name, tensor.shape[::-1], 0, tensor.tobytes()))
    return made
