"""Build the native module with the address and undefined-behaviour sanitizers, in a folder of its own.

The folder gets copies of the package and the tests, so that what runs there finds this build and the checkout keeps its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tomli

from tests.kit.source_tree import CHECKOUT

SANITIZERS = ("address", "undefined")
# Optimised little, so that a report names its line; what is undefined ends the program like a wrong address.
FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", f"-fsanitize={','.join(SANITIZERS)}", "-fno-sanitize-recover=all")
COPIED = ("tlserve", "tests", "docs", "specs", "pyproject.toml", "runtime.toml")
COMPILER = os.environ.get("CC", "gcc")


def build(folder: Path) -> Path:
    """Copy the checkout into `folder` and build the module there; return the path of the module."""
    for name in COPIED:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy(source, folder / name)
    (extension,) = tomli.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "ext-modules"
    ]
    flags = [flag for flag in extension["extra-compile-args"] if not flag.startswith("-O")]
    include = f"-I{sysconfig.get_path('include')}"
    objects = [folder / f"{Path(source).stem}.o" for source in extension["sources"]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        commands = [
            [COMPILER, *flags, *FLAGS, "-fPIC", include, "-c", source, "-o", str(made)]
            for source, made in zip(extension["sources"], objects, strict=True)
        ]
        list(pool.map(lambda command: subprocess.run(command, cwd=folder, check=True), commands))
    module = folder / "tlserve/kernels/native" / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    link = [COMPILER, "-shared", *FLAGS, *extension["extra-link-args"], *map(str, objects), "-o", str(module)]
    subprocess.run(link, cwd=folder, check=True)
    return module


def environment(folder: Path) -> Mapping[str, str]:
    """Return the environment in which Python loads the module: the sanitizer comes before everything else."""
    libraries = [_library(name) for name in ("libasan.so", "libubsan.so")]
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        # Python itself keeps memory until its end, and Rust's libraries have stacks of their own
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:handle_segv=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONPATH": str(folder),
        "CFLAGS": " ".join(FLAGS),  # the tests of the stand-ins build a module too
        "PYTHONMALLOC": "malloc",
    }


def _library(name: str) -> str:
    found = subprocess.run([COMPILER, f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def run(folder: Path, command: Sequence[str]) -> int:
    """Run a command in `folder` with the sanitizers; return its exit code."""
    return subprocess.run(command, cwd=folder, env=environment(folder), check=False).returncode
