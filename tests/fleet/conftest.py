"""Options of the random schedules of a fleet."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fleet")
    group.addoption(
        "--fleet-seed", type=int, default=None, help="play the one schedule of this seed, and tell what happened"
    )
    group.addoption("--fleet-schedules", type=int, default=240, help="how many random schedules are played")
