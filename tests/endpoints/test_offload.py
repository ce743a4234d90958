"""Where work runs: short texts overtake long ones, one tenant does not hold all places, and work that nobody waits for ends."""

import threading

import pytest
import trio
import trio.testing

from tests.kit.model.tiny_tokenizers import SENTENCE, gpt2_metadata
from tlserve.endpoints.offload import INLINE_BYTES, LONG_BYTES, Offload
from tlserve.text.tokenizer import build_tokenizer

LONG, SHORT = LONG_BYTES + 1, LONG_BYTES


@pytest.mark.spec("API-167")
async def test_short_work_overtakes_long_work_and_tenants_take_turns() -> None:
    offload, release, order = Offload(), threading.Event(), list[str]()

    async def run(name: str, size: int, tenant: str, *, waits: bool) -> None:
        with trio.fail_after(20):
            await offload.run(size, (lambda: release.wait(20)) if waits else (lambda: None), tenant)
        order.append(name)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(lambda: run("greedy", LONG, "greedy", waits=True))
        await trio.testing.wait_all_tasks_blocked()
        await run("short", SHORT, "greedy", waits=False)
        await run("tiny", INLINE_BYTES, "greedy", waits=False)
        await run("modest", LONG, "modest", waits=False)
        assert order == ["short", "tiny", "modest"]
        release.set()
    assert order[3:] == ["greedy"] * 4


@pytest.mark.spec("API-167")
async def test_a_tenant_that_leaves_keeps_its_place_until_its_thread_ends() -> None:
    offload, release, running = Offload(), threading.Event(), threading.Semaphore(0)

    def work() -> None:
        running.release()
        release.wait(20)

    for _ in range(3):
        with trio.move_on_after(0.05):
            await offload.run(LONG, work, "greedy")
    assert running.acquire(timeout=10)
    assert not running.acquire(timeout=0)
    with trio.fail_after(20):
        await offload.run(LONG, lambda: None, "modest")
        release.set()
        await offload.run(LONG, lambda: None, "greedy")


@pytest.mark.spec("API-168")
async def test_one_tenant_leaves_a_thread_for_short_work_to_others() -> None:
    offload, release = Offload(), threading.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(offload.run, INLINE_BYTES + 1, lambda: release.wait(20), "greedy")
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(10):
            await offload.run(INLINE_BYTES + 1, lambda: None, "modest")
        release.set()


@pytest.mark.spec("API-167")
async def test_encoding_ends_soon_after_its_client_has_left() -> None:
    tokenizer = build_tokenizer(gpt2_metadata())
    text = (SENTENCE + " ") * 100_000
    began, ended, complete = threading.Event(), threading.Event(), list[int]()

    def work() -> None:
        began.set()
        try:
            complete.extend(tokenizer.encode(text))
        finally:
            ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: Offload().run(LONG, work, "greedy"))
        await trio.to_thread.run_sync(began.wait)
        nursery.cancel_scope.cancel()
    assert await trio.to_thread.run_sync(ended.wait, 20)
    assert complete == []
