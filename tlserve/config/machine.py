"""The resources of this machine: its available memory, the share that a server takes, and the cores this process can use.

Owns the reading of the kernel's figures, including the limits of a container.
"""

from __future__ import annotations

import os
from pathlib import Path

from tlserve.config import cgroup

SHARE_OF_MEMORY = 4
"""One part in this many of the available memory is for keys and values, unless the setting says otherwise."""


def available_memory_bytes(proc: Path = cgroup.PROC, root: Path = cgroup.ROOT) -> int:
    """Return the bytes that can be used without swapping: the machine's, or the container's if that is less.

    Source: MemAvailable of proc_meminfo(5); for containers `tlserve.config.cgroup`.
    """
    return min(_machine_available(proc), cgroup.available_memory_bytes(proc, root))


def usable_cores(proc: Path = cgroup.PROC, root: Path = cgroup.ROOT) -> int:
    """Return how many threads can compute at the same time: the cores that this process can use, within its CPU quota.

    A quota of 2.5 cores gives 2: a thread beyond the quota makes the kernel stop all of them for a part of each period.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup.cpu_quota(proc, root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def _machine_available(proc: Path) -> int:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    # not Linux: half of the installed memory is a cautious guess at the free memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
