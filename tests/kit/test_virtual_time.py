"""A seeded run takes no time, and leaves trio as it was."""

import time

import trio

from tests.kit.virtual_time import run_seeded


async def sleep_long() -> float:
    await trio.sleep(3600)
    return trio.current_time()


def test_an_hour_takes_no_time() -> None:
    start = time.monotonic()
    assert run_seeded(sleep_long, seed=0) == 3600
    assert time.monotonic() - start < 5


def test_afterwards_the_order_of_tasks_is_trios_own_again() -> None:
    scheduler = trio._core._run
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r.getstate()
    run_seeded(sleep_long, seed=0)
    assert (scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r.getstate()) == before
