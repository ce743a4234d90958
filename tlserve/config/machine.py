"""What this machine offers: its available memory, the share of it that a server takes, and the cores this process may use.

Owns reading the kernel's own figures, including the limits of a container.
"""

from __future__ import annotations

import os
from pathlib import Path

SHARE_OF_MEMORY = 4
"""One part in this many of the available memory goes to keys and values, unless the setting says otherwise."""


def available_memory_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return bytes that can be taken without swapping: the machine's, or the container's where that is less.

    Source: MemAvailable of proc_meminfo(5); memory.max and memory.current of Linux's cgroup v2.
    """
    return min(_machine_available(proc), _container_available(cgroup))


def usable_cores() -> int:
    """Return the cores that the scheduler lets this process use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _machine_available(proc: Path) -> int:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    # not Linux: half of what is installed is a cautious guess at what is free
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _container_available(cgroup: Path) -> int:
    try:
        return max(0, int((cgroup / "memory.max").read_text()) - int((cgroup / "memory.current").read_text()))
    except (OSError, ValueError):  # no container, or no limit ("max")
        return 1 << 62
