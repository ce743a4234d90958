"""Safetensors files written by hand, so that they can be wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping


def safetensors_bytes(header: object, data: bytes = b"", *, size: int | None = None) -> bytes:
    """Return a file of `header` (JSON, or bytes unchanged) and `data`; `size`: the length that it claims for its header."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if size is None else size) + raw + data


def entry(kind: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> Mapping[str, object]:
    """Return the description of one tensor."""
    return {"dtype": kind, "shape": shape, "data_offsets": offsets}
