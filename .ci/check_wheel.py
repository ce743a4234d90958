"""Check the file of a wheel: `python .ci/check_wheel.py WHEEL`. Prints what it found, or says what is wrong and returns 1.

One extension of the limited API with every instruction set of its processor, and no symbol of a newer C library than its name
promises. Needs only Python.
"""

import re
import sys
import zipfile
from pathlib import Path

EXTENSION = "tlserve/kernels/native/_native.abi3.so"
ISAS = {
    "x86_64": ("amx", "avx512vnni", "avxvnni", "avx2"),
    "aarch64": ("neondot", "neon"),
    "arm64": ("neondot", "neon"),
}


def faults_of(path: Path) -> list[str]:
    """Return what is wrong with the wheel at `path`; prints its size and the newest C library that it requires."""
    python, abi, platform = path.stem.split("-")[-3:]
    with zipfile.ZipFile(path) as wheel:
        extensions = [name for name in wheel.namelist() if name.endswith((".so", ".pyd", ".dylib"))]
        if extensions != [EXTENSION]:
            return [f"it has the extensions {extensions}, not {EXTENSION} alone"]
        binary = wheel.read(EXTENSION)
    needs = newest_c_library(binary)
    library = f"glibc {needs[0]}.{needs[1]}" if needs else "no glibc"
    print(f"{path.name}: {path.stat().st_size} bytes; requires {library}")
    faults = [] if (python, abi) == ("cp311", "abi3") else [f"its tag is {python}-{abi}, not cp311-abi3"]
    return faults + missing_isas(binary, platform) + broken_promise(needs, platform)


def newest_c_library(binary: bytes) -> tuple[int, int] | None:
    """Return the newest version of glibc whose symbols the extension uses; None without any."""
    versions = re.findall(rb"\0GLIBC_(\d+)\.(\d+)", binary)
    return max(((int(major), int(minor)) for major, minor in versions), default=None)


def missing_isas(binary: bytes, platform: str) -> list[str]:
    """Return a fault for each instruction set of the platform whose name is not in the extension."""
    expected = next((isas for machine, isas in ISAS.items() if platform.endswith(machine)), ())
    return [
        f"it has no kernels for {isa}"
        for isa in expected
        if not re.search(rb"(?<![A-Za-z_])" + isa.encode() + rb"\0", binary)
    ]


def broken_promise(needs: tuple[int, int] | None, platform: str) -> list[str]:
    """Return a fault if a manylinux tag names an older glibc than the extension requires."""
    tags = [(int(major), int(minor)) for major, minor in re.findall(r"manylinux_(\d+)_(\d+)", platform)]
    if needs is None or not tags or needs <= min(tags):
        return []
    return [f"its tag {platform} promises an older C library than it requires"]


if __name__ == "__main__":
    faults = faults_of(Path(sys.argv[1]))
    print("\n".join(faults) or "the wheel is as it should be")
    sys.exit(bool(faults))
