"""Build the native module with sanitizers, then run its tests and many wrong calls there.

python -m tests.fuzz native --count 100000 --seed 7
python -m tests.fuzz native --folder /tmp/sanitized         # keeps the build, or uses one that is there
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.native.build import build, run

TESTS = (
    "tests/kernels/native",
    "tests/kernels/stand_ins",
    "tests/engine/sampling/test_native_sampler.py",
    "tests/parity/test_native_wanted_rows.py",
    "tests/parity/test_encoders.py",
)
EXPERTS = "tests/kernels/native/test_experts.py"  # few and small, so all of them run, also those that compare bits
WITHOUT = "not bits_of_numpy"  # these compare results, many at a time, which is slow here


def searched(folder: Path, count: int, seed: int) -> int:
    """Run everything in a folder with a build; return 0 if nothing was found."""
    # -s: what a sanitizer prints is not lost with what a test prints
    tests = [sys.executable, "-m", "pytest", "-q", "-x", "-s", "-p", "no:xdist", "-k", WITHOUT, *TESTS]
    experts = [sys.executable, "-m", "pytest", "-q", "-x", "-s", "-p", "no:xdist", EXPERTS]
    calls = [sys.executable, "-m", "tests.fuzz.native.arguments", "--count", str(count), "--seed", str(seed)]
    return max(abs(run(folder, command)) for command in (tests, experts, calls))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz native", description="Search the C module with sanitizers."
    )
    parser.add_argument("--count", type=int, default=20_000, help="wrong calls (default 20000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the build is or goes (default: a folder that is removed)")
    arguments = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if not (folder / "tlserve").is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            print(f"built {build(folder)}", flush=True)
        return searched(folder, arguments.count, arguments.seed)


if __name__ == "__main__":
    raise SystemExit(main())
