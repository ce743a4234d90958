"""A program: a head whose cluster loses its control process in the middle of a stream. It prints what it saw as JSON.

python -m tests.kit.ray_loss
"""

from __future__ import annotations

import json
import os
import signal
import time

import trio

from tests.kit.mini_head import fresh_key, poll_once, read_on
from tests.kit.ray_cluster import SUCC, actors, links_of, pid_of, running_cluster
from tlserve.fleet.ray_cluster import join_cluster
from tlserve.fleet.ray_processes import ClusterProcesses
from tlserve.generation import GenerationRequest

LONG = GenerationRequest(prompt=(1, 2, 3), max_tokens=500, seed=7)


async def lose_control(processes: ClusterProcesses) -> dict[str, object]:
    """Lose the control process behind the first events of a stream, read the rest, and say what was seen."""
    async with join_cluster(processes.settings, processes.address) as cluster, actors(["a"], SUCC):
        link = (await links_of(cluster.directory().changes(), ["a"]))["a"]
        key = fresh_key()
        await link.place(key, LONG, 60)
        events, _ = await poll_once(link, key, 0)
        os.kill(pid_of(processes, "gcs_server"), signal.SIGKILL)
        killed, used_s = time.monotonic(), time.process_time()
        lost = await cluster.wait_lost()
        noticed_s = time.monotonic() - killed
        cpu_s = time.process_time() - used_s
        events = await read_on(link, key, events)
    return {"lost": lost.message, "noticed_s": noticed_s, "cpu_s": cpu_s, "events": len(events)}


if __name__ == "__main__":
    with running_cluster() as running:
        print(json.dumps(trio.run(lose_control, running)))
