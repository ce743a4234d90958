"""Nodes that are processes of this machine, started by the head and ended with it.

Owns their start and their addresses, and starts a process again when it ends. Does not know what a node serves: it gets the
command, which must log in JSON, and end when its standard input ends (so that no node outlives a killed head).

The nursery of `run`:

    run
    `- _keep, one a node         its process; its warnings go to our log; after its end a pause, then a new process
"""

from __future__ import annotations

import json
import logging
import math
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import trio

from tlserve.errors import OperatorError
from tlserve.fleet.http.link import HttpLink
from tlserve.fleet.link import NodeChange, NodeGone, NodeUp

log = logging.getLogger("tlserve.fleet")

START_LIMIT_S = 300.0
END_GRACE_S = 5.0
PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0

_PASSED_ON = {"warning": logging.WARNING, "error": logging.ERROR}
_RECEIVE_BYTES = 65_536


class NodeNotStarted(OperatorError):
    """A node's process ended before it answered."""


class NodeProcesses:
    """A `NodeDirectory` of `count` processes of `command`; `make_link` makes the link to a node's URL. `run` must run."""

    def __init__(
        self, count: int, command: Sequence[str], environment: Mapping[str, str], make_link: Callable[[str], HttpLink]
    ) -> None:
        self._names = [f"node-{number}" for number in range(1, count + 1)]
        self._command = command
        self._environment = environment
        self._make_link = make_link
        self._send, self._receive = trio.open_memory_channel[NodeChange](math.inf)  # at most two changes a start

    def changes(self) -> AsyncIterator[NodeChange]:
        """Return the nodes as their processes start and end."""
        return self._receive

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the processes running until cancelled; started once all answer. Raises `NodeNotStarted` for one that never did."""
        async with trio.open_nursery() as nursery:
            with trio.fail_after(START_LIMIT_S):
                async with trio.open_nursery() as starting:
                    for name in self._names:
                        starting.start_soon(nursery.start, self._keep, name)
            task_status.started()

    async def _keep(self, name: str, *, task_status: trio.TaskStatus[None]) -> None:
        pause_s = PAUSE_S
        while True:
            started_at = trio.current_time()
            reason = await self._live(name, task_status)
            task_status = trio.TASK_STATUS_IGNORED
            log.warning("%s has ended: %s; starting it again", name, reason)
            self._send.send_nowait(NodeGone(name, reason))
            pause_s = (
                PAUSE_S if trio.current_time() - started_at > LONGEST_PAUSE_S else min(2 * pause_s, LONGEST_PAUSE_S)
            )
            await trio.sleep(pause_s)

    async def _live(self, name: str, task_status: trio.TaskStatus[None]) -> str:
        """Start one process and return why it ended."""
        process = await trio.lowlevel.open_process(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=dict(self._environment),
            start_new_session=True,  # a Ctrl-C at the terminal goes to the head only, which ends its nodes last
        )
        try:
            await self._follow(name, process, task_status)
            code = await process.wait()
        finally:
            await _end(process)
        return f"exit code {code}"

    async def _follow(self, name: str, process: trio.Process, task_status: trio.TaskStatus[None]) -> None:
        """Read the log of the process until it ends; the record of its start has its address."""
        last, is_up = "no message", False
        async for record in _records(process):
            last = str(record.get("message", last))
            addresses = record.get("api")
            if record.get("event") == "start" and isinstance(addresses, list):
                self._send.send_nowait(NodeUp(name, self._make_link(f"http://{addresses[0]}")))
                task_status.started()
                is_up = True
            elif record.get("level") in _PASSED_ON:
                log.log(_PASSED_ON[str(record["level"])], "%s: %s", name, last)
        if not is_up and task_status is not trio.TASK_STATUS_IGNORED:
            raise NodeNotStarted(f"{name} did not start: {last}")


async def _records(process: trio.Process) -> AsyncIterator[Mapping[str, object]]:
    """Yield the records that the process logs; a line that is not a record becomes a message."""
    rest = b""
    assert process.stderr is not None
    while part := await process.stderr.receive_some(_RECEIVE_BYTES):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield _record(line)
    if rest:
        yield _record(rest)


def _record(line: bytes) -> Mapping[str, object]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    return record if isinstance(record, dict) else {"message": line.decode("utf-8", "replace")}


async def _end(process: trio.Process) -> None:
    """End a process: by its standard input and SIGTERM, and if that does not help, by SIGKILL."""
    if process.returncode is not None:
        return
    with trio.CancelScope(shield=True):
        assert process.stdin is not None
        await process.stdin.aclose()
        process.terminate()
        with trio.move_on_after(END_GRACE_S):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
