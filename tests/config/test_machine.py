"""The resources of the machine: memory within its container, and cores."""

from tlserve.config.machine import available_memory_bytes, usable_cores


def test_the_smaller_of_machine_and_container_counts(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   64 kB\n")
    assert available_memory_bytes(tmp_path, tmp_path) == 64 * 1024
    (tmp_path / "memory.max").write_text("50000\n")
    (tmp_path / "memory.current").write_text("20000\n")
    assert available_memory_bytes(tmp_path, tmp_path) == 30_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory_bytes(tmp_path, tmp_path) == 64 * 1024


def test_a_machine_without_these_files_still_gives_a_figure(tmp_path):
    assert available_memory_bytes(tmp_path, tmp_path) > 1 << 20


def test_this_machine_has_a_core():
    assert usable_cores() >= 1
