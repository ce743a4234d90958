"""The crossing between the event loop and the engine thread: commands go in, one report per step comes out.

Owns both directions and the heartbeat. Commands wait in a thread-safe queue; a report is one `run_sync_soon` call,
however many tokens the step made. Does not know what commands and reports mean.

`MemorySendChannel.send_nowait` from a foreign thread can seem to work and then hang the run, so nothing else in this
package may touch a trio object from the engine thread.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import trio
import trio.lowlevel

Command = TypeVar("Command")
Report = TypeVar("Report")


class Mailbox(Generic[Command, Report]):
    """Carry `Command`s to the engine thread and `Report`s back to the event loop that made the mailbox."""

    def __init__(self, deliver: Callable[[Report], None], clock: Callable[[], float] = time.monotonic) -> None:
        """`deliver` runs on the event loop, once for each report; it must not raise."""
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._deliver = deliver
        self._clock = clock
        self._token = trio.lowlevel.current_trio_token()
        self._busy_since: float | None = None

    # --- the event loop's side

    def put(self, command: Command) -> None:
        """Send `command` to the engine thread, and wake the thread if it is idle."""
        self._commands.put(command)

    def busy_s(self) -> float:
        """Return the seconds since the engine thread last took commands; 0 while it waits for them."""
        since = self._busy_since
        return 0.0 if since is None else self._clock() - since

    # --- the engine thread's side

    def take(self, *, wait: bool) -> list[Command]:
        """Return all waiting commands in order; with `wait`, block until there is one."""
        commands: list[Command] = []
        if wait:
            self._busy_since = None
            commands.append(self._commands.get())
        self._busy_since = self._clock()
        while True:
            try:
                commands.append(self._commands.get_nowait())
            except queue.Empty:
                return commands

    def post(self, report: Report) -> None:
        """Send `report` to the event loop; drop it if the loop has ended."""
        try:
            self._token.run_sync_soon(self._deliver, report)
        except trio.RunFinishedError:
            return
