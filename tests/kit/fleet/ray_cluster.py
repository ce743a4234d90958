"""A real cluster on this machine, and nodes in it.

with running_cluster() as cluster:                    # one control process on 127.0.0.1; all of it ends with the block
    async with joined(cluster) as changes:
        async with actors(["a", "b"], engine) as pids:
            links = await links_of(changes, ["a", "b"])
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache, partial
from pathlib import Path

import trio

from tlserve.config.settings import EngineSettings
from tlserve.fleet.link import NodeChange, NodeLink, NodeUp
from tlserve.fleet.node.service import NodeLimits
from tlserve.fleet.ray.actor import RayHandle, start_actor
from tlserve.fleet.ray.cluster import join_cluster
from tlserve.fleet.ray.link import ask_actor
from tlserve.fleet.ray.processes import ClusterProcesses, make_token_file, start_control
from tlserve.fleet.ray.settings import RaySettings
from tlserve.programs.node_in_thread import start_node

SUCC = EngineSettings(model_dir="succ", max_num_seqs=8)
TCP_LISTENS = "0A"


@cache
def token_file() -> Path:
    """Return the token of every cluster of this process: Ray reads it once."""
    directory = tempfile.mkdtemp(prefix="tlserve-token-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return make_token_file(Path(directory) / "token")


@contextmanager
def running_cluster() -> Iterator[ClusterProcesses]:
    """Start a control process on a free port of 127.0.0.1; all its processes are gone after the block."""
    with start_control(RaySettings(token_file=token_file())) as processes:
        yield processes
    assert processes.pids() == []


def pid_of(processes: ClusterProcesses, name: str) -> int:
    """Return the process whose command line has `name`."""
    (pid,) = (pid for pid in processes.pids() if name in Path(f"/proc/{pid}/cmdline").read_text())
    return pid


@asynccontextmanager
async def joined(processes: ClusterProcesses) -> AsyncIterator[AsyncIterator[NodeChange]]:
    """Join the cluster for the block; yield the changes of its nodes."""
    async with join_cluster(processes.settings, processes.address) as cluster:
        yield cluster.directory().changes()


@asynccontextmanager
async def actors(nodes: Sequence[str], engine: EngineSettings = SUCC) -> AsyncIterator[dict[str, int]]:
    """Start nodes for the block; yield the ids of their processes."""
    handles = {node: start_actor(partial(start_node, engine, NodeLimits()), node) for node in nodes}
    pids = {node: await process_id(handle) for node, handle in handles.items()}
    try:
        yield pids
    finally:
        for pid in pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def process_id(handle: RayHandle) -> int:
    """Return the process of an actor once it answers."""
    pid = await ask_actor(handle, "process_id")
    assert isinstance(pid, int)
    return pid


async def links_of(changes: AsyncIterator[NodeChange], nodes: Sequence[str]) -> dict[str, NodeLink]:
    """Wait until these nodes are up, and return their links."""
    links: dict[str, NodeLink] = {}
    with trio.fail_after(30):
        while not links.keys() >= set(nodes):
            change = await anext(changes)
            if isinstance(change, NodeUp):
                links[change.node] = change.link
    return links


def listening_addresses(pids: Sequence[int]) -> set[str]:
    """Return the addresses, in the kernel's hexadecimal, on which processes listen for TCP."""
    inodes = {inode for pid in pids for inode in _socket_inodes(pid)}
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {line[1].partition(":")[0] for line in lines if line[3] == TCP_LISTENS and line[9] in inodes}


def _socket_inodes(pid: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                yield target.removeprefix("socket:[").removesuffix("]")
