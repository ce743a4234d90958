"""A program that holds the processes of one `ray start`: `python -m tlserve.fleet.ray.keeper DIRECTORY COMMAND...`.

It must be started in a session of its own. It runs the command, writes its exit code on a line, and waits for the end of its
standard input or for SIGTERM; then it ends every process of its session and removes the directory. So nothing is left behind,
even if its parent is killed.

Owns the session: the processes in it, and their end. Knows nothing of Ray. Ray's own `--block` is not used: when the control
process dies, it also kills the nodes, in the middle of their answers. Source: proc_pid_stat(5), pidfd_open(2).
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

TERM_GRACE_S = 2.0
KILL_GRACE_S = 5.0

OUTPUT = "ray-start.log"
"""The output of the command goes to this file of the directory."""

_GONE = {"Z", "X"}


def session_pids(session: int) -> list[int]:
    """Return the processes of a session that have not ended, in the order of their ids."""
    found = (_session_of(pid) for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))))
    return sorted(pid for pid, state, its_session in found if its_session == session and state not in _GONE)


def _session_of(pid: int) -> tuple[int, str, int]:
    """Return the id, the state and the session of a process; session 0 if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return pid, "X", 0
    state, _, _, session = stat.rpartition(")")[2].split()[:4]
    return pid, state, int(session)


def end_session() -> None:
    """End every other process of this session: by SIGTERM, then by SIGKILL."""
    for number, grace_s in ((signal.SIGTERM, TERM_GRACE_S), (signal.SIGKILL, KILL_GRACE_S)):
        for pid in _others():
            _send(pid, number)
        _wait_gone(grace_s)


def _others() -> list[int]:
    return [pid for pid in session_pids(os.getsid(0)) if pid != os.getpid()]


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _wait_gone(limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while (others := _others()) and (left_s := deadline - time.monotonic()) > 0:
        _wait_exit(others[0], left_s)


def _wait_exit(pid: int, limit_s: float) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], limit_s)
    finally:
        os.close(descriptor)


def main(directory: str, *command: str) -> None:
    """Run `command`, and keep its processes until the end is asked for."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with (Path(directory) / OUTPUT).open("wb") as output:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
        print(done.returncode, flush=True)
        sys.stdin.read()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_session()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
