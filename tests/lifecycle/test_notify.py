"""The notes to a supervisor."""

import socket
from pathlib import Path

import pytest

from tlserve.lifecycle.notify import READY, notify


@pytest.mark.spec("LIFE-17")
@pytest.mark.parametrize("prefix", ["/", "@"])
def test_the_state_reaches_the_socket_of_the_supervisor(prefix: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("n")
    address = str(folder / "notify") if prefix == "/" else f"@tlserve-{folder}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(address.replace("@", "\0", 1))
        supervisor.settimeout(10)
        notify({"NOTIFY_SOCKET": address}, READY)
        assert supervisor.recv(100) == b"READY=1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_without_a_supervisor_nothing_is_sent(environ: dict[str, str]) -> None:
    notify(environ, READY)


def test_a_supervisor_that_is_gone_is_ignored(tmp_path: Path) -> None:
    notify({"NOTIFY_SOCKET": str(tmp_path / "gone")}, READY)
