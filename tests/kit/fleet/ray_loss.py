"""A program: a head whose cluster loses its control process in the middle of a stream. It prints its observations as JSON.

python -m tests.kit.fleet.ray_loss
"""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import trio

from tests.kit.fleet.mini_head import fresh_key, poll_once, read_on
from tests.kit.fleet.ray_cluster import SUCC, actors, links_of, token_file
from tlserve.fleet.ray.cluster import ControlLost, join_cluster
from tlserve.fleet.ray.settings import RaySettings
from tlserve.generation import GenerationRequest
from tlserve.programs.ray.control import serve_control

CONTROL_NOTICES_S = 3.0
"""By then the control program has also noticed the loss, and must leave the node alone."""

LONG = GenerationRequest(prompt=(1, 2, 3), max_tokens=500, seed=7)


async def lose_control() -> dict[str, object]:
    """Lose the control process after the first events of a stream, read the rest, and return the observations."""
    settings = RaySettings(token_file=token_file())
    seen: dict[str, object] = {}
    try:
        async with trio.open_nursery() as nursery:
            address, _ = await nursery.start(partial(serve_control, settings, handle_signals=False))
            seen |= await read_over_the_loss(settings, address)
    except* ControlLost as losses:
        seen["control_said"] = str(losses.exceptions[0])
    return seen


async def read_over_the_loss(settings: RaySettings, address: str) -> dict[str, object]:
    """Be a head with one node."""
    async with join_cluster(settings, address) as cluster, actors(["a"], SUCC):
        link = (await links_of(cluster.directory().changes(), ["a"]))["a"]
        key = fresh_key()
        await link.place(key, LONG, 60)
        events, _ = await poll_once(link, key, 0)
        os.kill(control_pid(), signal.SIGKILL)
        killed, used_s = time.monotonic(), time.process_time()
        lost = await cluster.wait_lost()
        noticed_s = time.monotonic() - killed
        cpu_s = time.process_time() - used_s
        await trio.sleep(CONTROL_NOTICES_S)
        events = await read_on(link, key, events)
    return {"lost": lost.message, "noticed_s": noticed_s, "cpu_s": cpu_s, "events": len(events)}


def control_pid() -> int:
    """Return the control process that this program has started: no other process has its token's directory in its environment."""
    mark = str(token_file()).encode()
    running = [path for path in Path("/proc").iterdir() if path.name.isdecimal()]
    (found,) = (path for path in running if _reads(path, "cmdline", b"gcs_server") and _reads(path, "environ", mark))
    return int(found.name)


def _reads(process: Path, name: str, part: bytes) -> bool:
    try:
        return part in (process / name).read_bytes()
    except OSError:
        return False


if __name__ == "__main__":
    print(json.dumps(trio.run(lose_control)))
