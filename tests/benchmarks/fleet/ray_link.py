"""The cost of the Ray link: `python -m tests.benchmarks.fleet.ray_link`.

The streams, their pace and the way they are read are those of `http_link`. It prints the seconds until the control process is
there, until this process has joined, and until a node answers; the CPU time per token of the actor and of this process; the round
trip of a call; and the memory of every process of the cluster, in which each shared page is divided among its processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import trio

from tests.benchmarks.fleet.http_link import PacedBackend, cpu_s, read_all
from tests.kit.fleet.ray_cluster import links_of, process_id, running_cluster
from tlserve.fleet.node.service import NodeService
from tlserve.fleet.ray.actor import start_actor
from tlserve.fleet.ray.cluster import join_cluster
from tlserve.fleet.ray.processes import ClusterProcesses
from tlserve.programs.node_in_thread import ThreadedNode

CALLS = 300


def start_paced_node(step_s: float, node: str, on_end: Callable[[], None]) -> ThreadedNode:
    """Start a node without an engine; it runs until its process ends."""
    started: Future[ThreadedNode] = Future()

    async def main() -> None:
        backend = PacedBackend(step_s)
        service = NodeService(backend, node=node, slots=1024)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(backend.run)
            await nursery.start(service.run)
            started.set_result(ThreadedNode(service, trio.lowlevel.current_trio_token(), trio.Event()))

    ThreadPoolExecutor(1).submit(trio.run, main).add_done_callback(lambda _: on_end())
    return started.result()


def memory_mib(pid: int) -> float:
    """Return the proportional share of memory of a process (Linux)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def name_of(pid: int) -> str:
    """Return the end of a process's command line as its name."""
    return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").replace("\0", " ")[-60:].strip()


async def measure(cluster: ClusterProcesses, arguments: argparse.Namespace) -> None:
    """Start a node, read from it, and print."""
    begin = time.monotonic()
    async with join_cluster(cluster.settings, cluster.address) as joined:
        print(f"joined after {time.monotonic() - begin:.2f} s")
        begin = time.monotonic()
        handle = start_actor(partial(start_paced_node, arguments.step_ms / 1000), "node")
        pid = await process_id(handle)
        print(f"the node's actor answers after {time.monotonic() - begin:.2f} s")
        link = (await links_of(joined.directory().changes(), ["node"]))["node"]
        trips = [await round_trip(link) for _ in range(CALLS)]
        cuts = statistics.quantiles(trips, n=20)
        print(f"a call: p50 {cuts[9] * 1000:.2f} ms, p95 {cuts[18] * 1000:.2f} ms")
        rounds = [await costs(link, pid, arguments) for _ in range(arguments.rounds)]
        names = ("node us/token", "head us/token", "tokens/poll")
        medians = (statistics.median(values) for values in zip(*rounds, strict=True))
        print(f"{arguments.streams} streams, a step of {arguments.step_ms:g} ms, {arguments.rounds} rounds")
        print(", ".join(f"{name} {median:.1f}" for name, median in zip(names, medians, strict=True)))
        everybody = [os.getpid(), *cluster.pids()]
        for one in everybody:
            print(f"{memory_mib(one):7.1f} MiB  {name_of(one)}")
        print(f"{sum(map(memory_mib, everybody)):7.1f} MiB  together")


async def round_trip(link) -> float:
    """Return the seconds that one call takes."""
    begin = time.perf_counter()
    await link.hello()
    return time.perf_counter() - begin


async def costs(link, node: int, arguments: argparse.Namespace) -> list[float]:
    """Return the CPU microseconds per token of node and head, and the tokens per poll, of one round."""
    total = arguments.streams * arguments.tokens
    node_s, head_s = cpu_s(node), time.process_time()
    polls = await read_all(link, arguments.streams, arguments.tokens)
    figures = [cpu_s(node) - node_s, time.process_time() - head_s]
    return [seconds / total * 1e6 for seconds in figures] + [total / polls]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    begin = time.monotonic()
    with running_cluster() as cluster:
        print(f"the control process is there after {time.monotonic() - begin:.2f} s")
        trio.run(measure, cluster, arguments)


if __name__ == "__main__":
    main()
