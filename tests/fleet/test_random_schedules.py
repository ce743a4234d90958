"""Random requests and faults on a fake fleet: every answer has the bits of the engine in process.

The command that a failure names repeats its schedule exactly. More schedules than usual:

    pytest tests/fleet/test_random_schedules.py --fleet-schedules 10000
"""

import logging

import pytest

from tests.kit.fleet.fleet_schedules import FleetSchedule

REPLAY = "pytest tests/fleet/test_random_schedules.py -s --fleet-seed"


@pytest.fixture
def seeds(request):
    """The requested schedule, or the usual number."""
    seed = request.config.getoption("--fleet-seed", default=None)
    return range(request.config.getoption("--fleet-schedules", default=240)) if seed is None else [seed]


@pytest.mark.slow
@pytest.mark.spec("HEAD-2", "HEAD-26")
def test_every_answer_of_a_random_schedule_equals_that_of_the_engine(seeds, caplog):
    caplog.set_level(logging.CRITICAL)
    seen = {"moved": 0, "finished": 0, "failed": 0, "left": 0}
    for seed in seeds:
        schedule = FleetSchedule(seed).play()
        if len(seeds) == 1:
            tell(schedule)
        assert not schedule.wrong, f"{schedule.wrong}; play it again: {REPLAY} {seed}"
        for outcome, placements in zip(schedule.outcomes, schedule.placements, strict=True):
            seen["moved"] += placements > 1
            seen["left"] += outcome.left
            seen["failed"] += outcome.error is not None
            seen["finished"] += not outcome.left and outcome.error is None
    assert len(seeds) == 1 or all(seen.values()), f"the schedules do not reach everything: {seen}"


def tell(schedule):
    """Print a schedule and its outcome."""
    print(
        f"\n{schedule.nodes}, survivor {schedule.survivor}, {schedule.heads} heads, {schedule.settings}\n{schedule.limits}"
    )
    for fault in schedule.faults:
        print(fault)
    for client, outcome in zip(schedule.clients, schedule.outcomes, strict=True):
        print(client, outcome.trace, sep="\n  ")


@pytest.mark.spec("HEAD-2")
def test_a_schedule_can_be_repeated():
    for seed in range(5):
        first, second = FleetSchedule(seed).play(), FleetSchedule(seed).play()
        assert [outcome.trace for outcome in first.outcomes] == [outcome.trace for outcome in second.outcomes]
        assert [outcome.events for outcome in first.outcomes] == [outcome.events for outcome in second.outcomes]
