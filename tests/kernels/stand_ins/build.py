"""Build the extension module with every path of the kernels, their instructions replaced by portable C.

Every machine can run the paths of all processors that way, slowly. The sources are those of the package; the folder of this file
comes first among the folders of headers, so that `immintrin.h` and `arm_neon.h` are the stand-ins.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shlex
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import tomli

from tests.kit.source_tree import CHECKOUT

FOLDER = Path(__file__).parent
NATIVE = CHECKOUT / "tlserve" / "kernels" / "native"
COMPILER = os.environ.get("CC", "gcc")
PATHS = {
    "amx": ("KERNELS_AMX", "TL_AVX512", "TL_AMX"),
    "avx512vnni": ("KERNELS_AVX512", "TL_AVX512"),
    "avxvnni": ("KERNELS_AVX_VNNI", "TL_AVX2", "TL_AVX_VNNI"),
    "avx2": ("KERNELS_AVX2", "TL_AVX2"),
    "neondot": ("KERNELS_NEON_DOT", "TL_NEON", "TL_DOTPROD"),
    "neon": ("KERNELS_NEON", "TL_NEON"),
}
"""For each path, in the order of `find_kernels.c`: the name of its table, and what its file in the package defines.

TL_AMX: it has tiles.
"""

# GCC warns that functions with long vectors are called in another way with the instructions; nothing is called from elsewhere.
_FLAGS = ("-O1", "-Wno-psabi", "-fPIC", "-DTL_EVERY_PATH")


def build(folder: Path, *, real_tiles: bool = False) -> ModuleType:
    """Compile into `folder` and import the result; `real_tiles`: with the package's own tile products in `amx`, the only path.

    Flags in the environment variable CFLAGS are added: sanitizers need them.
    """
    settings = tomli.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    (extension,) = settings["tool"]["setuptools"]["ext-modules"]
    own = shlex.split(os.environ.get("CFLAGS", ""))
    units = _units(extension, own)
    if real_tiles:
        package = [*extension["extra-compile-args"], "-fPIC", *own, f"-I{NATIVE}"]
        units = {stem: unit for stem, unit in units.items() if not stem.startswith("path_")}
        units["real_tiles"] = [*package, str(FOLDER / "real_tiles.c")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda stem: _run([COMPILER, *units[stem], "-c", "-o", str(folder / f"{stem}.o")]), units))
    module = folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    objects = [str(folder / f"{stem}.o") for stem in units]
    _run([COMPILER, "-shared", *own, *objects, "-lm", *extension["extra-link-args"], "-o", str(module)])
    return _import(module)


def _units(extension: dict[str, Any], own: Sequence[str]) -> dict[str, list[str]]:
    """Return the flags and the source of each object: those of the package, and one for each path."""
    headers = [f"-I{path}" for path in (FOLDER, NATIVE, sysconfig.get_path("include"))]
    flags = [flag for flag in extension["extra-compile-args"] if not flag.startswith("-O")] + [*_FLAGS, *own, *headers]
    units = {}
    for source in map(Path, extension["sources"]):
        if not source.name.startswith("isa_"):
            replaced = source.name == "sampler_loops.c"
            units[source.stem] = [*flags, str(FOLDER / source.name if replaced else CHECKOUT / source)]
    for name, (table, *macros) in PATHS.items():
        named = [f"-DTABLE={table}", f'-DNAME="{name}"', *(f"-D{macro}" for macro in macros)]
        units[f"path_{name}"] = [*flags, *named, str(FOLDER / "path.c")]
    return units


@contextmanager
def emulated_tiles(folder: Path) -> Iterator[Callable[[], int]]:
    """Run the instructions of tiles on a processor without them, in this thread; yield a function that counts them."""
    library = folder / "emulate_tiles.so"
    _run(
        [COMPILER, "-O1", *_FLAGS, "-shared", f"-I{FOLDER}", str(FOLDER / "emulate_tiles.c"), "-lm", "-o", str(library)]
    )
    emulator = ctypes.CDLL(str(library))
    emulator.start_emulation()
    try:
        yield lambda: int(emulator.count_emulated())
    finally:
        emulator.end_emulation()


def digests(folder: Path, name: str, flags: Sequence[str]) -> dict[str, str]:
    """Compile `cases.c` with `flags` and run it; return its lines, by instruction."""
    program = folder / name
    _run(
        [COMPILER, "-O1", "-Wno-psabi", "-ffp-contract=off", *flags, str(FOLDER / "cases.c"), "-lm", "-o", str(program)]
    )
    output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return dict(line.split() for line in output.splitlines())


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr}"


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("stand_ins._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
