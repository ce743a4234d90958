"""Whether the tensors of a model's files are those that its architecture needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tlserve.errors import ModelRefused

Shapes = Mapping[str, tuple[int, ...]]


def check_shapes(expected: Shapes, found: Shapes, own_name: Callable[[str], str] = str) -> None:
    """Refuse a missing tensor and a wrong shape; `own_name` returns the name that the files have for a name of GGUF's."""
    for name, shape in expected.items():
        if name not in found:
            raise ModelRefused(f"the tensor {own_name(name)} is missing")
        if found[name] != shape:
            raise ModelRefused(f"the tensor {own_name(name)} has the shape {list(found[name])}, not {list(shape)}")
