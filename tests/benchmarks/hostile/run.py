"""A server that gets hostile schemas while it streams: its memory, the processor time outside it, and the gaps between tokens.

Owns the server process, the streams that are read all the time, and the order of the groups. Groups of hostile schemas and groups
of as many ordinary ones take turns, at the same pace, so that whatever else the machine does meets both.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from tests.benchmarks.processes import free_port, running
from tests.kit.chat.hostile_schemas import hostile_schemas
from tlserve.errors import OperatorError

_GROUP = 10
_TOKENS = 400
_TICKS = os.sysconf("SC_CLK_TCK")


@attrs.frozen(kw_only=True)
class HostilePlan:
    """What is measured."""

    model: str
    count: int
    streams: int
    seed: int
    warm_s: float


@attrs.frozen(kw_only=True)
class Sent:
    """One hostile schema: the answer's status, what it cost outside the server, and how much memory the server gained."""

    kind: str
    status: int
    wall_s: float
    cpu_s: float
    growth_mb: float


@attrs.frozen(kw_only=True)
class HostileReport:
    """All that was sent, and the gaps between tokens of the streams, in ms."""

    sent: Sequence[Sent]
    quiet_ms: Sequence[float]
    hostile_ms: Sequence[float]
    whole_growth_mb: float

    @property
    def worst_growth_mb(self) -> float:
        return max(sent.growth_mb for sent in self.sent)

    @property
    def worst_cpu_s(self) -> float:
        return max(sent.cpu_s for sent in self.sent)

    @property
    def quiet_p99_ms(self) -> float:
        return _p99(self.quiet_ms)

    @property
    def hostile_p99_ms(self) -> float:
        return _p99(self.hostile_ms)


def _p99(gaps: Sequence[float]) -> float:
    return sorted(gaps)[len(gaps) * 99 // 100]


async def measure_hostile(plan: HostilePlan, done: Callable[[], None]) -> HostileReport:
    """Run a server and measure; raises OperatorError if it does not start or breaks off a stream."""
    port, health = free_port(), free_port()
    command = [sys.executable, "-m", "tlserve", "serve", "--model", plan.model]
    command += ["--port", str(port), "--health-port", str(health)]
    async with running(command, f"http://127.0.0.1:{health}/readyz") as pid:
        run = _Run(plan, port, pid)
        async with trio.open_nursery() as nursery:
            for number in range(plan.streams):
                nursery.start_soon(run.stream, number)
            report = await run.measure(done)
            nursery.cancel_scope.cancel()
    return report


class _Run:
    def __init__(self, plan: HostilePlan, port: int, pid: int) -> None:
        self._plan = plan
        self._port = port
        self._pid = pid
        self._gaps: list[float] = []  # where a stream puts its gaps now
        self._ordinary = 0

    async def measure(self, done: Callable[[], None]) -> HostileReport:
        for _ in range(_GROUP):
            await self._send_ordinary()
        await trio.sleep(self._plan.warm_s)
        sent, quiet, hostile = list[Sent](), list[float](), list[float]()
        schemas = hostile_schemas(self._plan.count, self._plan.seed)
        before_mb = _resident_mb(self._pid)
        for at in range(0, len(schemas), _GROUP):
            self._gaps, began = hostile, trio.current_time()
            group = schemas[at : at + _GROUP]
            for kind, schema in group:
                sent.append(await self._send_hostile(kind, schema))
                done()
            self._gaps, pace_s = quiet, (trio.current_time() - began) / len(group)
            for _ in group:
                due = trio.current_time() + pace_s
                await self._send_ordinary()
                await trio.sleep_until(due)
        growth = _resident_mb(self._pid) - before_mb
        return HostileReport(sent=sent, quiet_ms=quiet, hostile_ms=hostile, whole_growth_mb=growth)

    async def _send_hostile(self, kind: str, schema: dict[str, Any]) -> Sent:
        memory_mb, cpu_s, began = _resident_mb(self._pid), _children_s(self._pid), trio.current_time()
        status = await self._send(schema)
        return Sent(
            kind=kind,
            status=status,
            wall_s=trio.current_time() - began,
            cpu_s=_children_s(self._pid) - cpu_s,
            growth_mb=_resident_mb(self._pid) - memory_mb,
        )

    async def _send_ordinary(self) -> None:
        self._ordinary += 1
        status = await self._send({"type": "object", "properties": {"a": {"const": self._ordinary}}})
        if status != 200:
            raise OperatorError(f"an ordinary schema got {status}")

    async def _send(self, schema: dict[str, Any]) -> int:
        """Send a request with `schema` and return the status of its answer."""
        format_ = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        stream = await self._open({"max_tokens": 1, "stop_token_ids": [0], "response_format": format_})
        async with stream:
            answer = b""
            async for data in stream:
                answer += data
        return int(answer.split(b" ", 2)[1])

    async def stream(self, number: int) -> None:
        """Read streams one after another; the time between two reads with an event is a gap."""
        while True:
            stream = await self._open({"max_tokens": _TOKENS, "min_tokens": _TOKENS, "seed": number, "stream": True})
            async with stream:
                last_s = None
                async for data in stream:
                    now_s = trio.current_time()
                    if b"data: {" not in data:
                        continue
                    if last_s is not None:
                        self._gaps.append(1000 * (now_s - last_s))
                    last_s = now_s
                if last_s is None:
                    raise OperatorError("the server broke off a stream")

    async def _open(self, fields: dict[str, Any]) -> trio.SocketStream:
        message = {"role": "user", "content": "Tell me a story about the sea."}
        body = json.dumps({"model": self._plan.model, "messages": [message], **fields}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        await stream.send_all(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        return stream


# --- what /proc says


def _resident_mb(pid: int) -> float:
    """Return the memory of a process in MB (of 2^20 bytes)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _children_s(pid: int) -> float:
    """Return the processor time of the programs that a process has started, and of those that they have waited for."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    fields = (Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split() for child in children)
    return sum(sum(map(int, own[11:15])) for own in fields) / _TICKS
