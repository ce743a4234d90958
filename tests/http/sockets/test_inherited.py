"""Sockets of a supervisor: in a process of its own, because they are descriptors from 3 on."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

import pytest

SHOW = """
import os, sys
from tlserve.errors import OperatorError
from tlserve.http.sockets.inherited import inherited_sockets
environ = {**os.environ, "LISTEN_PID": sys.argv[1] or str(os.getpid())}
try:
    print([(name, opened.getsockname()[1]) for name, opened in inherited_sockets(environ)])
except OperatorError as fault:
    print(fault.message)
"""


def shown(opened: Sequence[socket.socket], pid: str = "", **variables: str) -> str:
    """Return what a process says about `opened` as its descriptors from 3 on."""
    numbers = [one.fileno() for one in opened]
    moves = " ".join(f"{3 + index}<&{number}" for index, number in enumerate(numbers))
    environ = {**os.environ, "LISTEN_FDS": str(len(opened)), **variables}
    command = ["bash", "-c", f'exec "$0" -c "$1" "$2" {moves}', sys.executable, SHOW, pid]
    return subprocess.run(command, env=environ, pass_fds=numbers, capture_output=True, text=True, check=True).stdout


def listening() -> socket.socket:
    opened = socket.create_server(("127.0.0.1", 0))
    low = socket.socket(fileno=os.dup(opened.fileno()))
    while low.fileno() < 10:  # above the descriptors that it moves to
        low = socket.socket(fileno=os.dup(low.detach()))
    opened.close()
    return low


@pytest.mark.spec("LIFE-16")
def test_sockets_are_taken_with_their_names() -> None:
    with listening() as one, listening() as other:
        ports = one.getsockname()[1], other.getsockname()[1]
        named = shown([one, other], LISTEN_FDNAMES="api:health")
        assert named == f"[('api', {ports[0]}), ('health', {ports[1]})]\n"
        assert shown([one, other]) == f"[('', {ports[0]}), ('', {ports[1]})]\n"


def test_the_variables_of_another_process_are_ignored() -> None:
    with listening() as one:
        assert shown([one], pid="1") == "[]\n"


def test_a_descriptor_that_does_not_listen_is_refused_by_name() -> None:
    with socket.socket() as silent:
        assert "the socket api is not a stream socket that listens" in shown([silent], LISTEN_FDNAMES="api")
    assert "the descriptor 3 (api) of LISTEN_FDS is not a socket" in shown([], LISTEN_FDS="1", LISTEN_FDNAMES="api")
    assert "LISTEN_FDS is 'x', not a number" in shown([], LISTEN_FDS="x")
