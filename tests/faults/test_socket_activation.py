"""A supervisor keeps the sockets, as systemd does: a restart refuses nobody."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.kit.cli.processes import PATIENCE_S
from tests.kit.http.http_calls import post

BODY = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@contextmanager
def activated(api: socket.socket, health: socket.socket, notified: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server with two sockets as its descriptors 3 and 4; its process id is that of the shell before it."""
    start = f'export LISTEN_PID=$$; exec "$0" -m tlserve --model succ 3<&{api.fileno()} 4<&{health.fileno()}'
    names = {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "api:health", "NOTIFY_SOCKET": notified}
    with subprocess.Popen(
        ["bash", "-c", start, sys.executable],
        env={**os.environ, **names},
        pass_fds=(api.fileno(), health.fileno()),
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def above_ten(opened: socket.socket) -> socket.socket:
    """Return the same socket with a number that is not one of the two that it moves to."""
    kept = [socket.socket(fileno=os.dup(opened.fileno()))]
    while kept[-1].fileno() < 10:
        kept.append(socket.socket(fileno=os.dup(opened.fileno())))
    for one in (opened, *kept[:-1]):
        one.close()
    return kept[-1]


@pytest.mark.slow
@pytest.mark.spec("LIFE-15", "LIFE-16", "LIFE-17")
def test_a_client_that_connects_during_a_restart_gets_its_answer(tmp_path_factory: pytest.TempPathFactory) -> None:
    notified = str(tmp_path_factory.mktemp("n") / "notify")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor,
        above_ten(socket.create_server(("127.0.0.1", 0))) as api,
        above_ten(socket.create_server(("127.0.0.1", 0))) as health,
    ):
        supervisor.bind(notified)
        supervisor.settimeout(PATIENCE_S)
        address = f"127.0.0.1:{api.getsockname()[1]}"
        with activated(api, health, notified) as process:
            assert supervisor.recv(100) == b"READY=1"
            answer = post(address, "/v1/chat/completions", BODY).json
            assert answer["choices"][0]["message"]["content"] == "bcd"
            process.send_signal(signal.SIGTERM)
            assert supervisor.recv(100) == b"STOPPING=1"
            assert process.wait(PATIENCE_S) == 0
        with socket.create_connection(("127.0.0.1", api.getsockname()[1]), PATIENCE_S) as client:
            client.sendall(GET)  # while no server runs
            with activated(api, health, notified):
                answered = b"".join(iter(lambda: client.recv(65_536), b""))
                assert answered.startswith(b"HTTP/1.1 200")
                assert json.loads(answered.partition(b"\r\n\r\n")[2])["data"][0]["id"] == "succ"
                with socket.create_connection(("127.0.0.1", health.getsockname()[1]), PATIENCE_S) as probe:
                    probe.sendall(GET.replace(b"/v1/models", b"/readyz"))
                    assert probe.recv(100).startswith(b"HTTP/1.1 200")
