"""The drain: its table of phases, and the driver in virtual time."""

import itertools

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tlserve.errors import ServerFault
from tlserve.lifecycle.drain import CUT_GRACE_S, Drain, DrainState, Happening, Phase, next_state


class Requests:
    """Open requests that end at the test's request."""

    def __init__(self, count: int, *, obeys_cut: bool = True) -> None:
        self.count = count
        self.story: list[str] = []
        self._obeys_cut = obeys_cut
        self._ended = trio.Event()

    async def close(self) -> None:
        self.story.append("close")

    def open_requests(self) -> int:
        return self.count

    async def wait_ended(self) -> None:
        await self._ended.wait()

    def cut(self) -> None:
        self.story.append("cut")
        if self._obeys_cut:
            self.end()

    def end(self) -> None:
        self.count = 0
        self._ended.set()


async def run(drain: Drain, requests: Requests) -> int:
    return await drain.run(
        close=requests.close,
        open_requests=requests.open_requests,
        wait_ended=requests.wait_ended,
        cut=requests.cut,
    )


async def exit_code_of(drain: Drain, requests: Requests, codes: list[int]) -> None:
    codes.append(await run(drain, requests))


@pytest.mark.spec("LIFE-6")
def test_the_table_leads_from_serving_to_the_end_on_every_path() -> None:
    ends = set()
    for path in itertools.product(Happening, repeat=4):
        state = DrainState()
        try:
            for happening in path:
                state = next_state(state, happening)
        except ServerFault:
            continue
        ends.add((state.phase, state.was_cut))
    assert ends == {(Phase.CUT, True), (Phase.ENDED, True), (Phase.ENDED, False)}


@pytest.mark.spec("LIFE-6")
@pytest.mark.parametrize(
    ("phase", "happening"),
    [
        (Phase.SERVING, Happening.DEADLINE_PASSED),
        (Phase.SERVING, Happening.ALL_ENDED),
        (Phase.ENDED, Happening.DEADLINE_PASSED),
        (Phase.ENDED, Happening.ALL_ENDED),
    ],
)
def test_a_transition_that_the_table_lacks_is_an_error(phase: Phase, happening: Happening) -> None:
    with pytest.raises(ServerFault, match=f"{happening.value} cannot happen to a server that is {phase.value}"):
        next_state(DrainState(phase), happening)


@pytest.mark.spec("LIFE-3")
def test_only_a_cut_makes_the_exit_code_three() -> None:
    assert DrainState(Phase.ENDED).exit_code == 0
    assert DrainState(Phase.ENDED, was_cut=True).exit_code == 3


async def test_nothing_happens_before_a_stop(nursery: trio.Nursery) -> None:
    drain, requests = Drain(30), Requests(1)
    nursery.start_soon(run, drain, requests)
    await wait_all_tasks_blocked()
    assert requests.story == []
    assert drain.phase is Phase.SERVING
    nursery.cancel_scope.cancel()


@pytest.mark.spec("LIFE-4")
async def test_an_idle_server_ends_at_once_even_without_any_time(autojump_clock: MockClock) -> None:
    drain, requests = Drain(0), Requests(0)
    drain.stop()
    assert await run(drain, requests) == 0
    assert requests.story == ["close"]
    assert trio.current_time() == autojump_clock.current_time()


async def test_two_stops_of_an_idle_server_cut_nothing() -> None:
    drain, requests = Drain(30), Requests(0)
    drain.stop()
    drain.stop()
    assert await run(drain, requests) == 0
    assert (requests.story, drain.phase) == (["close"], Phase.ENDED)


@pytest.mark.spec("LIFE-2")
async def test_open_requests_that_end_in_time_are_not_cut() -> None:
    drain, requests, codes = Drain(30), Requests(2), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exit_code_of, drain, requests, codes)
        drain.stop()
        await wait_all_tasks_blocked()
        assert drain.phase is Phase.DRAINING
        requests.end()
    assert (codes, requests.story, drain.phase) == ([0], ["close"], Phase.ENDED)


@pytest.mark.spec("LIFE-2")
async def test_requests_past_the_deadline_are_cut_then(autojump_clock: MockClock) -> None:
    drain, requests = Drain(30), Requests(1)
    begin = trio.current_time()
    drain.stop()
    assert await run(drain, requests) == 3
    assert requests.story == ["close", "cut"]
    assert trio.current_time() - begin == pytest.approx(30)


async def test_a_second_stop_cuts_at_once(autojump_clock: MockClock) -> None:
    drain, requests, codes = Drain(30), Requests(1), list[int]()
    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exit_code_of, drain, requests, codes)
        drain.stop()
        nursery.start_soon(_stop_when_blocked, drain)
    assert (codes, requests.story) == ([3], ["close", "cut"])
    assert trio.current_time() - begin < 1


async def _stop_when_blocked(drain: Drain) -> None:
    await wait_all_tasks_blocked()
    drain.stop()


async def test_two_stops_before_the_drain_runs_also_cut() -> None:
    drain, requests = Drain(30), Requests(1)
    drain.stop()
    drain.stop()
    assert await run(drain, requests) == 3
    assert requests.story == ["close", "cut"]


@pytest.mark.spec("LIFE-5")
async def test_a_request_that_ignores_the_cut_does_not_delay_the_end(autojump_clock: MockClock) -> None:
    drain, requests = Drain(30), Requests(1, obeys_cut=False)
    begin = trio.current_time()
    drain.stop()
    assert await run(drain, requests) == 3
    assert trio.current_time() - begin == pytest.approx(30 + CUT_GRACE_S)


async def test_a_stop_after_the_end_does_nothing() -> None:
    drain, requests = Drain(30), Requests(0)
    drain.stop()
    await run(drain, requests)
    drain.stop()
    assert drain.phase is Phase.ENDED


async def test_a_task_that_waits_for_the_drain_is_woken() -> None:
    drain = Drain(30)
    drain.stop()
    await drain.wait_asked()
    assert drain.phase is Phase.DRAINING
