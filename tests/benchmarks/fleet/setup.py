"""The processes of a fleet that is measured: nodes, each on its own cores if requested, and a head over them.

Owns their commands, their ports and their processor time. Does not know what is measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs

from tests.benchmarks.processes import free_port, running
from tlserve.bench.target import TargetServer, parse_target

_PINNED = "import os, sys; os.sched_setaffinity(0, {%s}); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@attrs.frozen(kw_only=True)
class FleetProcess:
    """A process of the fleet: a node, or the head."""

    url: str
    pid: int

    def target(self, name: str, model: str) -> TargetServer:
        """Return the process as a server that can be measured."""
        return parse_target(self.url, name=name, model=model)

    def cpu_s(self) -> float:
        """Return the processor time that all its threads have used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@asynccontextmanager
async def nodes_and_head(
    model: str, nodes: Sequence[str], threads: int
) -> AsyncIterator[tuple[list[FleetProcess], FleetProcess]]:
    """Run a node for each of `nodes` ("": on any core, "0": on core 0) and a head over them."""
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(run_node(model, cores, threads)) for cores in nodes]
        yield processes, await stack.enter_async_context(run_head(model, processes))


@asynccontextmanager
async def run_node(model: str, cores: str = "", threads: int = 0) -> AsyncIterator[FleetProcess]:
    """Run one node."""
    own = ("--set", f"threads={threads}", "--set", "kv_memory_bytes=1000000000")
    async with _run(["node", "--model", model, *own], cores) as process:
        yield process


@asynccontextmanager
async def run_head(model: str, nodes: Sequence[FleetProcess]) -> AsyncIterator[FleetProcess]:
    """Run a head over `nodes`."""
    urls = ",".join(node.url for node in nodes)
    async with _run(["fleet", "--model", model, "--set", f"fleet.nodes={urls}"], "") as process:
        yield process


@asynccontextmanager
async def _run(arguments: Sequence[str], cores: str) -> AsyncIterator[FleetProcess]:
    port, health_port = free_port(), free_port()
    ports = ("--port", str(port), "--health-port", str(health_port), "--set", "log.level=warning")
    pin = (sys.executable, "-c", _PINNED % cores) if cores else (sys.executable,)
    command = [*pin, "-m", "tlserve", *arguments, *ports]
    async with running(command, f"http://127.0.0.1:{health_port}/readyz") as pid:
        yield FleetProcess(url=f"http://127.0.0.1:{port}", pid=pid)
