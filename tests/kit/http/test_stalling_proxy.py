"""The proxy forwards, holds bytes back while it stalls, and forwards them later."""

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.kit.http.stalling_proxy import StallingProxy


@pytest.fixture
def echo() -> Iterator[str]:
    """Return the address of a server that echoes its input."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                while data := connection.recv(100):
                    connection.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_it_forwards_both_ways_and_delays_bytes_while_it_stalls(echo: str) -> None:
    with StallingProxy(echo) as proxy:
        host, _, port = proxy.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(b"one")
            assert client.recv(10) == b"one"
            proxy.stall()
            client.sendall(b"two")
            client.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.recv(10)
            proxy.flow()
            client.settimeout(10)
            assert client.recv(10) == b"two"
