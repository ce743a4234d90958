"""Models that come and go: nothing that was admitted is lost, waits have ends, and memory is never promised twice."""

import random
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit.engine.leaving_models import Leaving, leaving_models, make_leaving, until
from tlserve.errors import (
    DrainCut,
    Draining,
    ModelLoadFailed,
    ModelLoading,
    ModelRefused,
    ModelTooLarge,
    Overloaded,
    TlserveError,
)
from tlserve.generation import ModelState
from tlserve.programs.residency.memory import ModelMemory

BCD = (98, 99, 100)


async def collect(one: Leaving, results: list[object]) -> None:
    """Note the tokens of one request, or the error that it got."""
    try:
        results.append(await one.answer())
    except TlserveError as error:
        results.append(error)


def has_finished(one: Leaving, count: int) -> bool:
    return one.model.statistics().finished_length_total == count


def has_results(results: list[object], count: int) -> bool:
    return len(results) >= count


class Hold:
    """A request that holds its model until it is told to end."""

    def __init__(self, one: Leaving) -> None:
        self._one = one
        self.began = trio.Event()
        self.end = trio.Event()
        self.tokens: tuple[int, ...] = ()

    async def run(self) -> None:
        async with self._one.model.held():
            self.began.set()
            await self.end.wait()
            self.tokens = await self._one.tokens()


@pytest.mark.spec("RES-1")
async def test_the_first_request_loads_the_model_and_waits_for_it() -> None:
    async with leaving_models(10, {"a": 10}, gated=True) as models, trio.open_nursery() as nursery:
        a, results = models["a"], list[object]()
        assert (a.state, a.model.status().memory_bytes) == ("unloaded", 0)
        nursery.start_soon(collect, a, results)
        nursery.start_soon(collect, a, results)
        await a.wait(ModelState.LOADING)
        await wait_all_tasks_blocked()
        assert (results, a.model.status().memory_bytes) == ([], 10)
        a.source.gate.set()
        await until(lambda: len(results) == 2)
        assert results == [BCD, BCD]
        assert (a.state, a.source.begun, a.model.status().loads_total) == ("loaded", 1, 1)


@pytest.mark.spec("RES-2")
async def test_the_idle_model_that_was_used_longest_ago_leaves() -> None:
    async with leaving_models(20, {"a": 10, "b": 10, "c": 10}) as models:
        for name in "abac":
            assert await models[name].answer() == BCD
        assert [models[name].state for name in "abc"] == ["loaded", "unloaded", "loaded"]
        assert models["b"].source.alive == 0
        assert await models["b"].answer() == BCD
        assert [models[name].state for name in "abc"] == ["unloaded", "loaded", "loaded"]


@pytest.mark.spec("RES-3")
async def test_a_busy_model_finishes_before_it_leaves_and_later_requests_wait() -> None:
    async with leaving_models(10, {"a": 10, "b": 10}) as models, trio.open_nursery() as nursery:
        a, b = models["a"], models["b"]
        hold, other, later = Hold(a), Hold(b), list[object]()
        nursery.start_soon(hold.run)
        await hold.began.wait()
        nursery.start_soon(other.run)
        await wait_all_tasks_blocked()
        nursery.start_soon(collect, a, later)
        await wait_all_tasks_blocked()
        assert (a.state, b.state, later, b.source.begun) == ("loaded", "unloaded", [], 0)
        hold.end.set()
        await until(other.began.is_set)
        assert (hold.tokens, a.state, later) == (BCD, "unloaded", [])
        other.end.set()
        await until(lambda: later)
        assert (other.tokens, later, a.source.begun) == (BCD, [BCD], 2)


@pytest.mark.spec("RES-3")
async def test_a_model_stays_when_the_request_for_its_room_has_gone() -> None:
    async with leaving_models(10, {"a": 10, "b": 10}) as models, trio.open_nursery() as nursery:
        a, hold, later = models["a"], Hold(models["a"]), list[object]()
        nursery.start_soon(hold.run)
        await hold.began.wait()
        with trio.CancelScope() as leaves:
            async with trio.open_nursery() as clients:
                clients.start_soon(collect, models["b"], [])
                await wait_all_tasks_blocked()
                nursery.start_soon(collect, a, later)
                await wait_all_tasks_blocked()
                assert later == []
                leaves.cancel()
        await until(lambda: later)
        assert (later, a.source.begun, models["b"].source.begun) == ([BCD], 1, 0)
        hold.end.set()


@pytest.mark.spec("RES-4")
async def test_a_request_waits_for_its_model_as_long_as_the_setting_says(mock_clock: MockClock) -> None:
    async with leaving_models(10, {"a": 10}, gated=True, wait_s=60.0) as models, trio.open_nursery() as nursery:
        a, results = models["a"], list[object]()
        nursery.start_soon(collect, a, results)
        await a.wait(ModelState.LOADING)
        mock_clock.jump(59.9)
        await wait_all_tasks_blocked()
        assert results == []
        mock_clock.jump(0.2)
        await until(lambda: results)
        assert isinstance(results[0], ModelLoading)
        assert ("'a'" in results[0].message, results[0].retry_after_s) == (True, 5)
        a.source.gate.set()  # the load goes on, and serves the next request
        assert await a.answer() == BCD
        assert a.source.begun == 1


@pytest.mark.spec("RES-4")
async def test_a_client_that_leaves_takes_only_its_own_request_with_it() -> None:
    async with leaving_models(10, {"a": 10}, gated=True) as models, trio.open_nursery() as nursery:
        a, results = models["a"], list[object]()
        with trio.CancelScope() as leaves:
            async with trio.open_nursery() as clients:
                clients.start_soon(collect, a, [])
                nursery.start_soon(collect, a, results)
                await a.wait(ModelState.LOADING)
                leaves.cancel()
        a.source.gate.set()
        await until(lambda: results)
        assert results == [BCD]
        await until(lambda: a.model.status().leaves_in_s == float("inf"))


@pytest.mark.spec("RES-5")
async def test_no_more_requests_wait_than_the_model_admits() -> None:
    async with leaving_models(10, {"a": 10}, gated=True, most_waiting=2) as models, trio.open_nursery() as nursery:
        a, results = models["a"], list[object]()
        for _ in range(2):
            nursery.start_soon(collect, a, results)
        await a.wait(ModelState.LOADING)
        with pytest.raises(Overloaded, match=r"'a'.*2 requests wait"):
            await a.answer()
        a.source.gate.set()
        await until(lambda: len(results) == 2)
        assert results == [BCD, BCD]


@pytest.mark.spec("RES-6")
@pytest.mark.parametrize("error", [ModelRefused("broken"), OSError("gone"), MemoryError(), ValueError("a defect")])
async def test_a_load_that_fails_ends_the_wait_and_the_next_request_tries_again(error, caplog) -> None:
    async with leaving_models(20, {"a": 10, "b": 10}) as models:
        a, b = models["a"], models["b"]
        assert await b.answer() == BCD
        a.source.error = error
        with pytest.raises(ModelLoadFailed, match="'a'") as refused:
            await a.answer()
        assert (refused.value.retry_after_s, a.model.status().load_failures_total) == (5, 1)
        assert "a: could not be loaded" in caplog.text
        await a.wait(ModelState.FAILED)
        assert (a.model.status().memory_bytes, b.state) == (0, "loaded")
        a.source.error = None
        assert await a.answer() == BCD


@pytest.mark.spec("RES-7")
async def test_a_model_that_proves_too_large_is_refused_and_not_loaded_again() -> None:
    memory = ModelMemory(30, fixed_bytes=10)
    a = make_leaving(memory, "a", 21, expected=5)
    a.source.gate.set()
    async with trio.open_nursery() as nursery:
        await nursery.start(a.model.run)
        for _ in range(2):
            with pytest.raises(ModelTooLarge, match=r"'a' needs .* raise loading.memory_bytes"):
                await a.answer()
        assert (a.source.begun, a.source.alive, a.state) == (1, 0, "failed")
        nursery.cancel_scope.cancel()


async def test_a_model_that_needs_more_than_its_files_say_lets_another_leave() -> None:
    memory = ModelMemory(30)
    a, b = make_leaving(memory, "a", 20), make_leaving(memory, "b", 15, expected=5)
    async with trio.open_nursery() as nursery:
        for one in (a, b):
            one.source.gate.set()
            await nursery.start(one.model.run)
        assert await a.answer() == BCD
        assert await b.answer() == BCD
        assert (a.state, b.model.status().memory_bytes) == ("unloaded", 15)
        nursery.cancel_scope.cancel()


@pytest.mark.spec("RES-8")
async def test_a_drain_lets_waiting_requests_have_their_model() -> None:
    async with leaving_models(10, {"a": 10}, gated=True) as models, trio.open_nursery() as nursery:
        a, results, drained = models["a"], list[object](), trio.Event()

        async def drain() -> None:
            await a.model.drain()
            drained.set()

        nursery.start_soon(collect, a, results)
        await a.wait(ModelState.LOADING)
        nursery.start_soon(drain)
        await wait_all_tasks_blocked()
        assert not drained.is_set()
        with pytest.raises(Draining):
            await a.answer()
        a.source.gate.set()
        await until(drained.is_set)
        assert results == [BCD]


@pytest.mark.spec("RES-8")
async def test_the_cut_ends_the_wait_for_a_load() -> None:
    async with leaving_models(10, {"a": 10}, gated=True) as models, trio.open_nursery() as nursery:
        a, results = models["a"], list[object]()
        nursery.start_soon(collect, a, results)
        await a.wait(ModelState.LOADING)
        a.model.close()
        a.model.cut()
        await until(lambda: results)
        assert isinstance(results[0], DrainCut)


@pytest.mark.spec("RES-10")
async def test_an_idle_model_leaves_after_its_time(mock_clock: MockClock) -> None:
    async with leaving_models(10, {"a": 10}, idle_s=30.0) as models:
        a = models["a"]
        assert await a.answer() == BCD
        mock_clock.jump(29.0)
        assert await a.answer() == BCD
        mock_clock.jump(29.9)
        await wait_all_tasks_blocked()
        assert a.state == "loaded"
        assert a.model.status().leaves_in_s == pytest.approx(0.1)
        mock_clock.jump(0.2)
        await a.wait(ModelState.UNLOADED)
        assert (a.source.alive, a.model.status().unloads_total) == (0, 1)


@pytest.mark.spec("RES-10")
async def test_a_held_model_does_not_leave_however_long_it_works(mock_clock: MockClock) -> None:
    async with leaving_models(10, {"a": 10}, idle_s=1.0) as models, trio.open_nursery() as nursery:
        hold = Hold(models["a"])
        nursery.start_soon(hold.run)
        await hold.began.wait()
        mock_clock.jump(100.0)
        await wait_all_tasks_blocked()
        assert models["a"].state == "loaded"
        hold.end.set()
        await until(lambda: hold.tokens)
        assert hold.tokens == BCD


@pytest.mark.spec("OLL-13")
async def test_a_request_can_say_how_long_its_model_stays(mock_clock: MockClock) -> None:
    async with leaving_models(10, {"a": 10}, idle_s=30.0) as models:
        a = models["a"]
        await a.answer()
        a.model.keep_for(float("inf"))
        mock_clock.jump(1000.0)
        await wait_all_tasks_blocked()
        assert a.state == "loaded"
        a.model.keep_for(0)
        await a.wait(ModelState.UNLOADED)
        await a.answer()  # a new load has the setting's time again
        assert a.model.status().leaves_in_s == pytest.approx(30.0)


@pytest.mark.spec("RES-12")
async def test_what_an_engine_has_counted_outlives_it() -> None:
    async with leaving_models(10, {"a": 10}) as models:
        a = models["a"]
        for round_number in range(1, 4):
            await a.answer()
            await until(partial(has_finished, a, round_number))
            a.model.keep_for(0)
            await a.wait(ModelState.UNLOADED)
            figures = a.model.statistics()
            assert (figures.generated_tokens_total, figures.active_sequences) == (3 * round_number, 0)
            assert sum(figures.step_rows.counts) == figures.steps_total == sum(figures.step_durations_s.counts)


@pytest.mark.spec("RES-9")
async def test_nothing_keeps_a_model_that_has_left() -> None:
    async with leaving_models(10, {"a": 10}) as models:
        a = models["a"]
        for _ in range(3):
            await a.answer()
            assert a.source.alive == 1
            a.model.keep_for(0)
            await a.wait(ModelState.UNLOADED)
            assert a.source.alive == 0


@pytest.mark.parametrize("seed", range(4))
async def test_random_requests_to_many_models_all_end_and_memory_is_never_exceeded(seed) -> None:
    random_ = random.Random(seed)
    sizes = {name: random_.choice((10, 15, 20)) for name in "abcde"}
    async with leaving_models(40, sizes) as models, trio.open_nursery() as nursery:
        results: list[object] = []

        async def client(name: str, steps: int) -> None:
            one = models[name]
            async with one.model.held():
                for _ in range(steps):
                    assert one.state == "loaded"
                    assert sum(other.model.status().memory_bytes for other in models.values()) <= 40
                    await trio.lowlevel.checkpoint()
                results.append(await one.tokens())

        for count in range(1, 61):
            nursery.start_soon(client, random_.choice("abcde"), random_.randrange(30))
            if random_.random() < 0.3:
                await until(partial(has_results, results, count // 2))
        await until(lambda: len(results) == 60)
        assert set(results) == {BCD}
