"""The kit finds the listening addresses of a process, and all clusters have one token."""

import os
import socket

from tests.kit.fleet.ray_cluster import listening_addresses, token_file


def test_the_listening_addresses_of_this_process_are_found() -> None:
    before = listening_addresses([os.getpid()])
    with socket.create_server(("127.0.0.1", 0)):
        assert listening_addresses([os.getpid()]) == before | {"0100007F"}
    with socket.create_server(("::1", 0), family=socket.AF_INET6):
        assert "00000000000000000000000001000000" in listening_addresses([os.getpid()])


def test_a_socket_that_does_not_listen_is_not_found() -> None:
    with socket.socket() as idle:
        before = listening_addresses([os.getpid()])
        idle.bind(("127.0.0.1", 0))
        assert listening_addresses([os.getpid()]) == before


def test_every_cluster_of_this_process_has_one_token() -> None:
    assert token_file() is token_file()
