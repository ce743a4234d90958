"""The program that keeps the processes of a cluster, with other processes in their place."""

import os
import subprocess
import sys

import pytest

from tlserve.fleet.ray.keeper import session_pids

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"


@pytest.fixture
def keeper_of(tmp_path):
    """Start a keeper of a command; yield it and its directory."""
    keepers = []

    def start(*command):
        directory = tmp_path / "cluster"
        directory.mkdir()
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tlserve.fleet.ray.keeper", str(directory), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        keepers.append(keeper)
        return keeper, directory

    yield start
    for keeper in keepers:
        keeper.kill()
        keeper.wait()
        keeper.stdin.close()
        keeper.stdout.close()


@pytest.fixture
def keep(keeper_of):
    """Start a keeper of a command, and wait until that has ended; also return the keeper's report."""

    def start(*command):
        keeper, directory = keeper_of(*command)
        return keeper, keeper.stdout.readline().strip(), directory

    return start


@pytest.mark.spec("RAY-11")
def test_it_ends_every_process_and_removes_the_directory_on_request(keep):
    keeper, said, directory = keep("sh", "-c", "sleep 1000 & sleep 1000 & exit 0")
    assert said == b"0"
    assert len(session_pids(keeper.pid)) == 3
    keeper.terminate()
    keeper.wait(10)
    assert session_pids(keeper.pid) == []
    assert not directory.exists()


@pytest.mark.spec("RAY-11")
def test_it_does_the_same_when_its_parent_has_gone(keep):
    keeper, _, directory = keep("sh", "-c", "sleep 1000 & exit 0")
    keeper.stdin.close()
    keeper.wait(10)
    assert session_pids(keeper.pid) == []
    assert not directory.exists()


@pytest.mark.slow
@pytest.mark.spec("RAY-11")
def test_a_process_that_does_not_end_is_killed(keep, tmp_path):
    os.mkfifo(tmp_path / "up")
    keeper, _, _ = keep("sh", "-c", f'{sys.executable} -c "{STUBBORN}" >{tmp_path}/up & read line <{tmp_path}/up')
    keeper.terminate()
    keeper.wait(10)
    assert session_pids(keeper.pid) == []


def test_a_failed_command_is_reported_by_its_code_and_its_processes_end(keep):
    keeper, said, _ = keep("sh", "-c", "sleep 1000 & exit 7")
    assert said == b"7"
    keeper.stdin.close()
    keeper.wait(10)
    assert session_pids(keeper.pid) == []


@pytest.mark.spec("RAY-11")
def test_it_can_be_ended_while_the_command_still_runs(keeper_of, tmp_path):
    os.mkfifo(tmp_path / "up")
    keeper, _ = keeper_of("sh", "-c", f"echo up >{tmp_path}/up; sleep 1000")
    assert (tmp_path / "up").read_text() == "up\n"
    keeper.terminate()
    keeper.wait(10)
    assert session_pids(keeper.pid) == []
