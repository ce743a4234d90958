"""A program loads only the packages that it runs."""

import subprocess
import sys

import pytest

PRINT_LOADED = (
    "import sys, {program}; print(*sorted(name for name in sys.modules if name.startswith(('tlserve.', 'ray'))))"
)


def loaded_by(program: str) -> list[str]:
    command = [sys.executable, "-c", PRINT_LOADED.format(program=program)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("program", "unused"),
    [
        (
            "tlserve.programs.node_in_thread",
            ("tlserve.http", "tlserve.endpoints", "tlserve.openai", "tlserve.fleet.ray"),
        ),
        (
            "tlserve.programs.ray.node",
            ("tlserve.http", "tlserve.endpoints", "tlserve.openai", "tlserve.fleet.head", "ray"),
        ),
        (
            "tlserve.programs.ray.control",
            ("tlserve.http", "tlserve.endpoints", "tlserve.openai", "tlserve.engine", "ray"),
        ),
        ("tlserve.programs.fleet_head", ("tlserve.engine", "tlserve.worker", "tlserve.fleet.ray", "ray")),
        (
            "tlserve.programs.server",
            ("tlserve.engine", "tlserve.worker", "tlserve.fleet.head", "tlserve.fleet.ray", "ray"),
        ),
    ],
)
def test_a_program_imports_no_package_that_it_does_not_use(program: str, unused: tuple[str, ...]) -> None:
    loaded = loaded_by(program)
    assert [name for name in loaded for prefix in unused if f"{name}.".startswith(f"{prefix}.")] == []
