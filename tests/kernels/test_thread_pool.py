"""The pool: every unit once, all ended on return, errors kept."""

import functools
import re
import threading

import pytest

from tests.kit.source_tree import CHECKOUT
from tlserve.config import cgroup
from tlserve.config.machine import usable_cores
from tlserve.kernels.thread_pool import HelperThread, ThreadPool


@pytest.mark.spec("MOD-9")
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("units", [0, 1, 2, 7])
def test_every_unit_runs_exactly_once(threads, units):
    ran = []
    ThreadPool(threads).run([lambda i=i: ran.append(i) for i in range(units)])
    assert sorted(ran) == list(range(units))


def test_two_threads_run_two_units_at_the_same_time():
    meeting = threading.Barrier(2, timeout=10)
    ThreadPool(2).run([meeting.wait, meeting.wait])


@pytest.mark.parametrize("broken", [0, 1])
def test_an_error_of_a_unit_is_raised_after_all_units_have_ended(broken):
    ended = []

    def unit(i):
        if i == broken:
            raise ZeroDivisionError
        ended.append(i)

    with pytest.raises(ZeroDivisionError):
        ThreadPool(2).run([lambda: unit(0), lambda: unit(1)])
    assert ended == [1 - broken]


def test_row_chunks_cover_all_rows():
    seen = []
    ThreadPool(2).run_row_chunks(lambda start, end: seen.extend(range(start, end)), 70, 32)
    assert sorted(seen) == list(range(70))


def test_no_threads_given_means_one_per_core():
    assert ThreadPool(0).threads == usable_cores() >= 1


@pytest.mark.spec("KER-37")
def test_a_cpu_quota_bounds_the_threads(monkeypatch):
    monkeypatch.setattr(cgroup, "cpu_quota", lambda *_: 1.5)
    assert ThreadPool(0).threads == 1
    assert ThreadPool(3).threads == 3


@pytest.mark.spec("KER-37")
def test_cores_are_counted_in_one_place():
    counting = {
        path.relative_to(CHECKOUT).as_posix()
        for path in (CHECKOUT / "tlserve").rglob("*.py")
        if re.search(r"cpu_count|sched_getaffinity", path.read_text(encoding="utf-8"))
    }
    others = {"tlserve/bench/report.py", "tlserve/kernels/native/build.py"}  # a report of the machine, and the build
    assert counting == {"tlserve/config/machine.py", *others}


def test_a_helper_thread_runs_units_in_order_and_raises_their_error_at_the_wait():
    ran, helper = [], HelperThread("helper")

    def fail():
        raise OSError("unit")

    for number in range(5):
        helper.start(functools.partial(ran.append, number))
    helper.wait()
    assert ran == [0, 1, 2, 3, 4]
    helper.start(fail)
    with pytest.raises(OSError, match="unit"):
        helper.wait()
    helper.close()
