"""Limits of control groups, from trees of files as the kernel shows them: version 1 and 2, nested, with page cache."""

from pathlib import Path

import pytest

from tlserve.config.cgroup import NO_LIMIT, available_memory_bytes, cpu_quota
from tlserve.config.machine import usable_cores

MB = 1 << 20


def tree(base: Path, files: dict[str, str]) -> tuple[Path, Path]:
    """Write `files` and return the folders that stand for /proc and /sys/fs/cgroup."""
    for name, text in files.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return base / "proc", base / "cgroup"


def memory_v2(limit: str, current: int, **counters: int) -> dict[str, str]:
    lines = "".join(f"{name} {value}\n" for name, value in counters.items())
    return {"memory.max": f"{limit}\n", "memory.current": f"{current}\n", "memory.stat": lines}


def under(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in files.items()}


def test_a_process_without_a_group_has_no_limit(tmp_path: Path) -> None:
    assert available_memory_bytes(tmp_path, tmp_path) == NO_LIMIT
    assert cpu_quota(tmp_path, tmp_path) is None


def test_page_cache_counts_as_available(tmp_path: Path) -> None:
    stat = {"inactive_file": 1000 * MB, "active_file": 800 * MB, "anon": 100 * MB}
    files = under("cgroup", memory_v2(str(2048 * MB), 1900 * MB, **stat))
    proc, root = tree(tmp_path, files | {"proc/self/cgroup": "0::/\n"})
    assert available_memory_bytes(proc, root) == 1948 * MB


def test_the_tightest_of_nested_groups_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/system.slice/tlserve.service\n",
        "cgroup/cgroup.controllers": "cpu memory\n",
        **under("cgroup/system.slice", memory_v2(str(500 * MB), 100 * MB)),
        **under("cgroup/system.slice/tlserve.service", memory_v2("max", 50 * MB)),
        "cgroup/system.slice/cpu.max": "350000 100000\n",
        "cgroup/system.slice/tlserve.service/cpu.max": "max 100000\n",
    }
    proc, root = tree(tmp_path, files)
    assert available_memory_bytes(proc, root) == 400 * MB
    assert cpu_quota(proc, root) == 3.5


def test_version_1_is_read(tmp_path: Path) -> None:
    group = "docker/abc"
    files = {
        "proc/self/cgroup": f"9:memory:/{group}\n4:cpu,cpuacct:/{group}\n1:name=systemd:/{group}\n",
        f"cgroup/memory/{group}/memory.limit_in_bytes": f"{300 * MB}\n",
        f"cgroup/memory/{group}/memory.usage_in_bytes": f"{250 * MB}\n",
        f"cgroup/memory/{group}/memory.stat": f"total_inactive_file {200 * MB}\n",
        f"cgroup/cpu,cpuacct/{group}/cpu.cfs_quota_us": "200000\n",
        f"cgroup/cpu,cpuacct/{group}/cpu.cfs_period_us": "100000\n",
    }
    proc, root = tree(tmp_path, files)
    assert available_memory_bytes(proc, root) == 250 * MB
    assert cpu_quota(proc, root) == 2


def test_in_a_container_the_mount_is_the_group(tmp_path: Path) -> None:
    """The path of the process is that of the host, and the container sees its own group at the mount."""
    files = {
        "proc/self/cgroup": "9:memory:/docker/abc\n4:cpu:/docker/abc\n",
        "cgroup/memory/memory.limit_in_bytes": f"{300 * MB}\n",
        "cgroup/memory/memory.usage_in_bytes": f"{100 * MB}\n",
        "cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    proc, root = tree(tmp_path, files)
    assert available_memory_bytes(proc, root) == 200 * MB
    assert cpu_quota(proc, root) is None


@pytest.mark.parametrize(("quota", "cores"), [("50000", 1), ("100000", 1), ("190000", 1), ("6400000000", None)])
def test_threads_follow_the_quota(tmp_path: Path, quota: str, cores: int | None) -> None:
    proc, root = tree(tmp_path, {"proc/self/cgroup": "0::/\n", "cgroup/cpu.max": f"{quota} 100000\n"})
    assert usable_cores(proc, root) == (usable_cores(tmp_path, tmp_path) if cores is None else cores)


def test_files_with_other_content_give_no_limit(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "cgroup/memory.max": "much\n", "cgroup/cpu.max": "all of it\n"}
    proc, root = tree(tmp_path, files)
    assert available_memory_bytes(proc, root) == NO_LIMIT
    assert cpu_quota(proc, root) is None
