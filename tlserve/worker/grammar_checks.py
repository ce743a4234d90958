"""The program that checks grammars, as the server uses it: started when the first grammar comes, kept, replaced when it dies.

Owns the process, its pipes, and which reply belongs to which check. Knows nothing of grammars: the command and the first message
are handed in. Lives on the event loop; `run` is a task of the backend.
"""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import msgspec
import trio

from tlserve.worker.check_messages import CheckReply, CheckRequest, CheckSetup, Frames, framed

log = logging.getLogger("tlserve.worker")

_GRACE_S = 5.0
"""How long a reply may be late beyond the check's own wall time before the program counts as hung."""

_PAUSE_S = 1.0
"""The pause before the program is started again."""


@attrs.frozen
class CheckProgram:
    """How the program is started. `setup` is called in a thread: it may read a whole vocabulary."""

    command: Sequence[str]
    setup: Callable[[], CheckSetup]
    environment: dict[str, str]


@attrs.define(eq=False)
class _Waiting:
    """One check under way; `reply` stays None if the program died."""

    over: trio.Event = attrs.field(factory=trio.Event)
    reply: CheckReply | None = None


class GrammarChecks:
    """Checks of grammars in another process. Without `run` no check ever ends."""

    def __init__(self, program: CheckProgram) -> None:
        self._program = program
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._asked = trio.Event()
        self._process: trio.Process | None = None
        self._ready = trio.Event()
        self._sending = trio.Lock()

    @property
    def pid(self) -> int | None:
        """The program's process id, while it runs."""
        return None if self._process is None else self._process.pid

    async def check(self, request: CheckRequest) -> CheckReply:
        """Return what became of one grammar; "died" if the program itself failed twice. `request.number` is set here."""
        for _ in range(2):
            reply = await self._check_once(request)
            if reply is not None:
                return reply
        return CheckReply(request.number, "died")

    async def _check_once(self, request: CheckRequest) -> CheckReply | None:
        self._asked.set()
        await self._ready.wait()
        number = next(self._numbers)
        own = self._waiting[number] = _Waiting()
        try:
            await self._send(msgspec.structs.replace(request, number=number))
            with trio.move_on_after(request.wall_s + _GRACE_S) as patience:
                await own.over.wait()
            if patience.cancelled_caught:
                self._kill()
            return own.reply
        finally:
            self._waiting.pop(number, None)

    async def _send(self, message: msgspec.Struct) -> None:
        """Write a message whole: one that is cut off would spoil all that follow."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            async with self._sending:
                with trio.CancelScope(shield=True), trio.move_on_after(_GRACE_S):
                    await self._process.stdin.send_all(framed(message))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the program has died: `run` sees it, and ends what waits

    async def run(self) -> None:
        """Keep the program running from the first check on."""
        await self._asked.wait()
        setup = await trio.to_thread.run_sync(self._program.setup)
        while True:
            try:
                await self._run_process(setup)
            except OSError as error:
                log.error("the program that checks grammars cannot be started: %s", error)
            self._end_all()
            await trio.sleep(_PAUSE_S)

    async def _run_process(self, setup: CheckSetup) -> None:
        start = partial(
            trio.lowlevel.open_process,
            list(self._program.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._program.environment,
            process_group=0,  # to end it whole; it stays in this session, as nice values count only within one (autogroups)
        )
        process: trio.Process = await start()
        self._process = process
        try:
            await self._send(setup)
            self._ready.set()
            await self._read(process)
            log.error("the program that checks grammars has ended; it is started again")
        finally:
            self._ready = trio.Event()
            self._kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                await _close_pipes(process)
            self._process = None

    async def _read(self, process: trio.Process) -> None:
        assert process.stdout is not None
        frames = Frames()
        async for data in process.stdout:
            for body in frames.feed(bytes(data)):
                reply = msgspec.msgpack.decode(body, type=CheckReply)
                waiting = self._waiting.get(reply.number)
                if waiting is not None:
                    waiting.reply = reply
                    waiting.over.set()

    def _kill(self) -> None:
        """End the program and the processes that it has forked: they are a process group of their own."""
        if self._process is not None and self._process.returncode is None:
            os.killpg(self._process.pid, 9)

    def _end_all(self) -> None:
        for waiting in self._waiting.values():
            waiting.over.set()


async def _close_pipes(process: trio.Process) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            await pipe.aclose()
