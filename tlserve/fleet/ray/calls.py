"""How a trio task waits for an answer of Ray: by a callback, without a thread, and cancellable.

Knows nothing of the calls themselves. Source: trio's low-level documentation of `wait_task_rescheduled`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol, TypeVar

import outcome
import trio
import trio.lowlevel

T = TypeVar("T")

Answer = Future[T]
"""An answer that may not be there yet; a thread of Ray sets it."""


class Reference(Protocol):
    """The object that Ray returns at once for a call, instead of its answer."""

    def future(self) -> Answer[bytes]:
        """Return the future answer; its callbacks run in a thread of Ray."""


async def wait_answer(reference: Reference) -> bytes:
    """Wait for the answer of a call, and return or raise it; a cancelled wait ends at once and drops it."""
    return await wait_future(reference.future())


async def wait_future(future: Answer[T]) -> T:
    """Wait for a future that another thread sets; a cancelled wait ends at once and leaves the future alone."""
    task, token, waits = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token(), True

    def wake() -> None:
        nonlocal waits
        if waits:
            waits = False
            trio.lowlevel.reschedule(task, outcome.capture(future.result, 0))

    def abort(_: Callable[[], None]) -> trio.lowlevel.Abort:
        nonlocal waits
        waits = False
        return trio.lowlevel.Abort.SUCCEEDED

    def cross(_: Answer[T]) -> None:
        with suppress(trio.RunFinishedError):  # the event loop has ended
            token.run_sync_soon(wake)

    future.add_done_callback(cross)
    answer: T = await trio.lowlevel.wait_task_rescheduled(abort)
    return answer
