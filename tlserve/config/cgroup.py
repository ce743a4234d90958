"""The limits of the control groups that this process is in: memory and CPU, version 1 and version 2, nested ones included.

Owns reading the kernel's files. `proc` and `root` are arguments, so that a test can show any tree. Without a file there is no
limit.

Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux; cgroups(7).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

PROC = Path("/proc")
ROOT = Path("/sys/fs/cgroup")
NO_LIMIT = 1 << 62
"""What version 1 shows for "no limit" is about this many bytes."""


@attrs.frozen
class _MemoryFiles:
    """The files of one version, and the counters of memory that the kernel gives back when it is needed."""

    limit: str
    usage: str
    reclaimable: tuple[str, ...]


_MEMORY_V2 = _MemoryFiles("memory.max", "memory.current", ("active_file", "inactive_file", "slab_reclaimable"))
_MEMORY_V1 = _MemoryFiles(
    "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")
)


def available_memory_bytes(proc: Path = PROC, root: Path = ROOT) -> int:
    """Return the bytes that every group around this process still allows: page cache counts as available, it can be dropped."""
    found = [_available(folder, _MEMORY_V2) for folder in _folders(proc, root, "")]
    found += [_available(folder, _MEMORY_V1) for folder in _folders(proc, root, "memory")]
    return min([NO_LIMIT, *(value for value in found if value is not None)])


def cpu_quota(proc: Path = PROC, root: Path = ROOT) -> float | None:
    """Return how many cores' worth of time the groups around this process allow; None without a limit."""
    quotas = [_quota_v2(folder) for folder in _folders(proc, root, "")]
    quotas += [_quota_v1(folder) for folder in _folders(proc, root, "cpu")]
    limits = [quota for quota in quotas if quota is not None]
    return min(limits) if limits else None


def _folders(proc: Path, root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the groups around this process, its own first; `controller` "" is the hierarchy of version 2."""
    path = _own_path(proc, controller)
    if path is None:
        return
    for top in _tops(root, controller):
        folder = top / path.lstrip("/")
        # In a container the path can be that of the host, which is not visible here: then the mount itself is its group.
        folder = folder if folder.is_dir() else top
        yield folder
        while folder not in (top, folder.parent):
            folder = folder.parent
            yield folder


def _tops(root: Path, controller: str) -> list[Path]:
    """Return where a hierarchy can be mounted: several controllers of version 1 can share one, as in `cpu,cpuacct`."""
    if not controller:
        return [folder for folder in (root, root / "unified") if (folder / "cgroup.controllers").is_file()] or [root]
    return [folder for folder in sorted(root.glob(f"*{controller}*")) if controller in folder.name.split(",")]


def _own_path(proc: Path, controller: str) -> str | None:
    """Return this process's path in a hierarchy, from lines such as `0::/a/b` and `4:cpu,cpuacct:/a/b`."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/" if not controller else None


def _available(folder: Path, files: _MemoryFiles) -> int | None:
    limit, usage = _number(folder / files.limit), _number(folder / files.usage)
    if limit is None or usage is None:
        return None
    counters = dict(line.split() for line in _text(folder / "memory.stat").splitlines() if line.count(" ") == 1)
    reclaimable = sum(int(counters.get(name, 0)) for name in files.reclaimable)
    return max(0, limit - max(0, usage - reclaimable))


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.strip().isdecimal() else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and quota > 0 and period else None


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:  # "max", or no such file
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
