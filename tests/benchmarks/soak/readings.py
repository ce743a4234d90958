"""What a server holds at one moment: memory, blocks, tasks, descriptors, threads; and whether it grew.

Owns where each number comes from (/proc, /metrics, the file of the tasks) and what counts as growth. Linux only. Does not know
the load.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import attrs

from tlserve.bench.target import TargetServer

MEMORY_SHARE, MEMORY_MB = 0.05, 16.0
"""Memory that is larger at the end than in the middle by more than both is growth."""

_SAMPLE = re.compile(r"^(tl_\w+)(?:\{([^}]*)\})? ([0-9.e+-]+)$", re.MULTILINE)


@attrs.frozen(kw_only=True)
class Reading:
    """The numbers of one moment without load. `children_mb` is the memory of the processes that the server started."""

    minute: float
    memory_mb: float
    children_mb: float
    descriptors: int
    threads: int
    tasks: int
    blocks_used: int
    blocks_cached: int
    running: int
    waiting: int


async def take_reading(minute: float, pid: int, tasks: Path, health: TargetServer) -> Reading:
    """Read the numbers of the server `pid` now."""
    async with await health.connect() as client:
        metrics = (await client.request("GET", "/metrics")).body.decode()
    found = {(name, labels): float(value) for name, labels, value in _SAMPLE.findall(metrics)}

    def total(name: str, label: str = "") -> int:
        return int(
            sum(value for (found_name, labels), value in found.items() if found_name == name and label in labels)
        )

    return Reading(
        minute=round(minute, 1),
        memory_mb=_memory_mb(pid),
        children_mb=sum(map(_memory_mb, descendants(pid))),
        descriptors=_entries(Path(f"/proc/{pid}/fd")),
        threads=_entries(Path(f"/proc/{pid}/task")),
        tasks=_number(tasks),
        blocks_used=total("tl_engine_kv_blocks", 'state="used"'),
        blocks_cached=total("tl_engine_kv_blocks", 'state="cached"'),
        running=total("tl_engine_active_sequences"),
        waiting=total("tl_engine_queue_depth"),
    )


def _entries(folder: Path) -> int:
    return len(list(folder.iterdir()))


def _number(path: Path) -> int:
    return int(path.read_text())


def _memory_mb(pid: int) -> float:
    """Return the resident memory of a process in MB (of a million bytes), 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    return round(int(found[1]) * 1024 / 1e6, 1) if found else 0.0


def descendants(pid: int) -> list[int]:
    """Return the processes that `pid` and its children have started and that still run."""
    found: list[int] = []
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return found
    for child in children:
        found += [child, *descendants(child)]
    return found


def growth(readings: Sequence[Reading]) -> list[str]:
    """Return what is left or has grown: of blocks and requests at any time, of the rest between the middle and the end."""
    middle, end = readings[len(readings) // 2], readings[-1]
    left = [
        f"{name} is {value} at minute {reading.minute:g}, without any request"
        for reading in readings
        for name in ("blocks_used", "running", "waiting")
        if (value := getattr(reading, name))
    ]
    grown = [
        f"{name} grew from {getattr(middle, name)} to {getattr(end, name)}"
        for name in ("descriptors", "threads", "tasks")
        if getattr(end, name) > getattr(middle, name)
    ]
    for name in ("memory_mb", "children_mb"):
        before, after = getattr(middle, name), getattr(end, name)
        if after - before > max(MEMORY_MB, MEMORY_SHARE * before):
            grown.append(f"{name} grew from {before} to {after}")
    return [*left, *grown]
