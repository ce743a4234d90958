"""The processes of a fleet that is measured: nodes, each on cores of its own if that is wished, and a head over them.

Owns their commands, their ports and their processor time. Refuses to know what is measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs

from tests.benchmarks.processes import free_port, running
from tlserve.bench.target import Target, parse_target

_PINNED = "import os, sys; os.sched_setaffinity(0, {%s}); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@attrs.frozen(kw_only=True)
class Member:
    """A process of the fleet: a node, or the head."""

    url: str
    pid: int

    def target(self, name: str, model: str) -> Target:
        """Return it as something to ask."""
        return parse_target(self.url, name=name, model=model)

    def cpu_s(self) -> float:
        """Return the processor time that it has taken so far, all threads together."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@asynccontextmanager
async def nodes_and_head(model: str, nodes: Sequence[str], threads: int) -> AsyncIterator[tuple[list[Member], Member]]:
    """Run a node for each of `nodes` ("": on any core, "0": on core 0) and a head over them."""
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(run_node(model, cores, threads)) for cores in nodes]
        yield members, await stack.enter_async_context(run_head(model, members))


@asynccontextmanager
async def run_node(model: str, cores: str = "", threads: int = 0) -> AsyncIterator[Member]:
    """Run one node."""
    own = ("--set", f"threads={threads}", "--set", "kv_memory_bytes=1000000000")
    async with _run(["node", "--model", model, *own], cores) as member:
        yield member


@asynccontextmanager
async def run_head(model: str, nodes: Sequence[Member]) -> AsyncIterator[Member]:
    """Run a head over `nodes`."""
    urls = ",".join(node.url for node in nodes)
    async with _run(["fleet", "--model", model, "--set", f"fleet.nodes={urls}"], "") as member:
        yield member


@asynccontextmanager
async def _run(arguments: Sequence[str], cores: str) -> AsyncIterator[Member]:
    port, health_port = free_port(), free_port()
    ports = ("--port", str(port), "--health-port", str(health_port), "--set", "log.level=warning")
    pin = (sys.executable, "-c", _PINNED % cores) if cores else (sys.executable,)
    command = [*pin, "-m", "tlserve", *arguments, *ports]
    async with running(command, f"http://127.0.0.1:{health_port}/readyz") as pid:
        yield Member(url=f"http://127.0.0.1:{port}", pid=pid)
