"""What each required dependency costs an installation: `python -m tests.benchmarks.dependencies`.

Installs each requirement of pyproject.toml alone, with all that it requires, into a folder of its own. Prints the number of
packages, their size, and the processor time of pip; what two requirements share counts for both. Needs a package index.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import attrs

from tests.kit.source_tree import CHECKOUT


@attrs.frozen
class Cost:
    """What one requirement brings: the names of its packages, their bytes with compiled Python files, pip's processor time."""

    packages: tuple[str, ...]
    size_bytes: int
    processor_s: float


def requirements() -> list[str]:
    """Return the required dependencies of pyproject.toml."""
    return list(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"])


def install_alone(requirement: str) -> Cost:
    """Install `requirement` into a folder that is removed, and return what it cost."""
    with tempfile.TemporaryDirectory() as folder:
        place, report = Path(folder) / "packages", Path(folder) / "report.json"
        before = processor_s()
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place), "--report", str(report)]
        subprocess.run([*pip, requirement], check=True)
        names = [package["metadata"]["name"] for package in json.loads(report.read_text())["install"]]
        size_bytes = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        return Cost(tuple(names), size_bytes, processor_s() - before)


def processor_s() -> float:
    """Return the processor time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print."""
    for requirement in requirements():
        cost = install_alone(requirement)
        print(
            f"{requirement:24} {len(cost.packages):3} packages {cost.size_bytes / 1e6:6.1f} MB"
            f" {cost.processor_s:5.1f} s  {', '.join(cost.packages)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
