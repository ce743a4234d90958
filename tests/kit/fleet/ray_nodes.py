"""Nodes that outlive a test: a program that joins a cluster, starts them, and keeps them until its input ends.

with standing_nodes(cluster, ["a", "b"]): ...
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio

from tests.kit.fleet.ray_cluster import actors
from tlserve.fleet.ray.cluster import join_cluster
from tlserve.fleet.ray.processes import ClusterProcesses
from tlserve.fleet.ray.settings import RaySettings


@contextmanager
def standing_nodes(cluster: ClusterProcesses, nodes: Sequence[str]) -> Iterator[None]:
    """Keep nodes of the successor model for the block."""
    command = [
        sys.executable,
        "-m",
        "tests.kit.fleet.ray_nodes",
        cluster.address,
        str(cluster.settings.token_file),
        *nodes,
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"up\n"
        yield


async def hold(address: str, token_file: str, nodes: Sequence[str]) -> None:
    """Keep the nodes until the end of standard input."""
    async with join_cluster(RaySettings(token_file=Path(token_file)), address), actors(nodes):
        print("up", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    trio.run(hold, sys.argv[1], sys.argv[2], sys.argv[3:])
