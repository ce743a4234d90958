"""How the native kernels are compiled: several files at once.

setuptools compiles the files of an extension one after the other, and those of the instruction sets take most of the time. Named
in pyproject.toml; nothing at run time imports it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools.command.build_ext import build_ext


class BuildInParallel(build_ext):  # type: ignore[misc]  # setuptools comes without types
    """`build_ext` with one compiler process for each core."""

    def build_extensions(self) -> None:
        """Build, with the compiler's `compile` replaced by one that compiles its files at the same time."""
        compile_in_turn = self.compiler.compile

        def compile_at_once(sources: Sequence[str], *args: Any, **kwargs: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda source: compile_in_turn([source], *args, **kwargs), sources)
                return [path for paths in made for path in paths]

        self.compiler.compile = compile_at_once
        super().build_extensions()

    def copy_extensions_to_source(self) -> None:
        """Copy as setuptools does, into a folder without the extensions of older builds."""
        remove_older_builds(Path(__file__).parent)
        super().copy_extensions_to_source()


def remove_older_builds(folder: Path) -> None:
    """Remove extensions in `folder` that an older tlserve built for one Python alone: Python prefers their name to `.abi3.so`."""
    for path in folder.glob("_native.cpython-*.so"):
        path.unlink()
