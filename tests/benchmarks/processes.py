"""Other programs: servers that run while they are measured, and commands that print what they measured.

Owns their start and their end. Each program gets its own session, and its whole process group is ended, so that nothing that a
script started outlives the benchmark.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import IO

import trio

from tlserve.bench.target import parse_target
from tlserve.errors import OperatorError
from tlserve.http.client.connection import ResponseBroken

START_LIMIT_S = 300.0
_END_LIMIT_S = 20.0
_ASK_EVERY_S = 0.1


def free_port() -> int:
    """Return a port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def running(command: Sequence[str], ready: str, limit_s: float = START_LIMIT_S) -> AsyncIterator[int]:
    """Run a server for the block and yield its process id; the block begins when GET `ready` returns 200.

    Raises OperatorError if the server ends first, or is not ready within `limit_s`.
    """
    with tempfile.TemporaryFile() as output:
        process = await open_process(command, output)
        try:
            await wait_ready(process, command, ready, limit_s, output)
            yield process.pid
        finally:
            await end_process(process)


async def output_of(command: Sequence[str]) -> str:
    """Return the output of a command; raises OperatorError, with the last line of its errors, if it fails."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = await open_process(command, output, errors)
        try:
            code = await process.wait()
        finally:
            await end_process(process)
        if code:
            raise OperatorError(f"{_name(command)} ended with code {code}: {last_line(errors)}")
        return _text(output)


async def open_process(
    command: Sequence[str], output: IO[bytes], errors: IO[bytes] | int = subprocess.STDOUT
) -> trio.Process:
    """Start a program in a session of its own; raises OperatorError if that is not possible."""
    try:
        return await trio.lowlevel.open_process(
            list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
        )
    except OSError as error:
        raise OperatorError(f"{_name(command)} cannot be run: {error.strerror}") from None


async def wait_ready(
    process: trio.Process, command: Sequence[str], ready: str, limit_s: float, output: IO[bytes]
) -> None:
    """Wait until GET `ready` returns 200; raises OperatorError if the program ends first, or within `limit_s` it does not."""
    with trio.move_on_after(limit_s):
        while not await _is_ready(ready):
            if process.poll() is not None:
                raise OperatorError(f"{_name(command)} ended before it was ready: {last_line(output)}")
            await trio.sleep(_ASK_EVERY_S)
        return
    raise OperatorError(f"{_name(command)} was not ready at {ready} within {limit_s:g} s: {last_line(output)}")


async def _is_ready(ready: str) -> bool:
    target = parse_target(ready, name="peer")
    try:
        async with await target.connect() as client:
            return (await client.request("GET", target.prefix or "/")).status == 200
    except (OSError, ResponseBroken):
        return False


async def end_process(process: trio.Process) -> None:
    """Ask the process group to end, and kill it after a while; also when cancelled."""
    with trio.CancelScope(shield=True):
        _signal(process, signal.SIGTERM)
        with trio.move_on_after(_END_LIMIT_S):
            await process.wait()
        _signal(process, signal.SIGKILL)
        await process.wait()


def _signal(process: trio.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _name(command: Sequence[str]) -> str:
    return repr(" ".join(command))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def last_line(file: IO[bytes]) -> str:
    """Return the last line that a program has written to `file`."""
    lines = _text(file).strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
