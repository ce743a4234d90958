"""A target of the search: a parser, how its inputs are made, and the errors that it may raise."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Target:
    """`make` draws an input, `use` gives it to the parser; any error but one of `refusals` is a fault.

    An input may take `cpu_s` of processor time, and add `memory_bytes` to the peak of the process. `share` is its part of the
    inputs of a search over all targets: cheap parsers have more. What a `quiet` one prints on
    standard error is left out.
    """

    name: str
    make: Callable[[random.Random], Any]
    use: Callable[[Any], object]
    refusals: tuple[type[BaseException], ...]
    share: int = 100
    cpu_s: float = 1.0
    memory_bytes: int = 64 << 20
    quiet: bool = True
