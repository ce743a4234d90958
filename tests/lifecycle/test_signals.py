"""Stop signals, raised in this process."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tlserve.lifecycle.signals import watch_stop_signals


@pytest.fixture(autouse=True)
def _usual_effects() -> Iterator[None]:
    """Give the signals their usual effects: `nohup` and a script start the tests with some ignored. Restore them afterwards."""
    usual: dict[int, Any] = {
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, effect) for number, effect in usual.items()}
    yield
    for number, effect in before.items():
        signal.signal(number, effect)


class Calls:
    """The calls so far, and an event for each."""

    def __init__(self) -> None:
        self.drained = trio.Event()
        self.cut = trio.Event()


@pytest.mark.spec("LIFE-1")
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_drains_and_the_second_cuts(first: int, second: int) -> None:
    calls = Calls()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            await nursery.start(watch_stop_signals, calls.drained.set, calls.cut.set)
            signal.raise_signal(first)
            await calls.drained.wait()
            await wait_all_tasks_blocked()
            assert not calls.cut.is_set()
            signal.raise_signal(second)
            await calls.cut.wait()


async def test_the_signals_do_what_they_did_before_after_the_second() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    calls = Calls()
    async with trio.open_nursery() as nursery:
        await nursery.start(watch_stop_signals, calls.drained.set, calls.cut.set)
        assert signal.getsignal(signal.SIGTERM) != before[0]
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.spec("LIFE-19")
async def test_a_signal_after_the_end_changes_nothing() -> None:
    calls = Calls()
    async with trio.open_nursery() as nursery:
        await nursery.start(watch_stop_signals, calls.drained.set, calls.cut.set)
        signal.raise_signal(signal.SIGTERM)  # not read before the watch ends
        nursery.cancel_scope.cancel()
    assert {signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)} == {signal.SIG_IGN}


@pytest.mark.spec("LIFE-1")
async def test_an_interrupt_that_was_ignored_at_the_start_drains_all_the_same() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    calls = Calls()
    async with trio.open_nursery() as nursery:
        await nursery.start(watch_stop_signals, calls.drained.set, calls.cut.set)
        signal.raise_signal(signal.SIGINT)
        with trio.fail_after(5):
            await calls.drained.wait()
        nursery.cancel_scope.cancel()


@pytest.mark.spec("LIFE-1")
async def test_a_hangup_that_was_ignored_at_the_start_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    calls = Calls()
    async with trio.open_nursery() as nursery:
        await nursery.start(watch_stop_signals, calls.drained.set, calls.cut.set)
        signal.raise_signal(signal.SIGHUP)
        await wait_all_tasks_blocked()
        assert not calls.drained.is_set()
        nursery.cancel_scope.cancel()
