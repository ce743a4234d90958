"""The limit of file descriptors: raised at start, and shared between the API and the health port."""

import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kit.cli.processes import server_process, wait_until
from tests.kit.http.gated_server import CHAT, parse_metrics
from tests.kit.http.http_calls import chat, get, post
from tlserve.programs.descriptors import KEPT_BACK, possible_connections


def under_limit(soft: int, hard: int) -> tuple[str, str]:
    """Return the arguments of Python that start tlserve under a limit of descriptors."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))"
    return "-c", f"{limit}; import runpy; runpy.run_module('tlserve', run_name='__main__')"


@pytest.mark.slow
@pytest.mark.spec("LIFE-12")
def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    with server_process("--model", "succ", start=under_limit(300, 900)) as server:
        assert server.health_address
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        assert next(line for line in limits.splitlines() if "open files" in line).split()[3:5] == ["900", "900"]


@pytest.mark.slow
@pytest.mark.spec("LIFE-13", "TEL-19")
def test_idle_connections_leave_descriptors_to_new_clients_and_to_the_health_port() -> None:
    with server_process("--model", "succ", start=under_limit(256, 256)) as server, ExitStack() as stack:
        host, _, port = server.address.rpartition(":")
        for _ in range(300):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
        for _ in range(3):
            assert get(server.health_address, "/readyz").status == 200
            assert post(server.address, CHAT, chat("a", max_tokens=2)).status == 200
        wait_until(lambda: 60 < connections(server.health_address) < 256 - KEPT_BACK)
        server.process.terminate()
        assert server.wait_exit() == 0
    warnings = [line for line in server.lines if " warning " in line or " error " in line]
    assert ["can have only 256 file descriptors" in warnings[0], "connections are in use" in warnings[1]] == [
        True,
        True,
    ]
    assert len(warnings) == 2


def connections(health_address: str) -> float:
    return parse_metrics(get(health_address, "/metrics").body.decode())["tl_http_connections{}"]


def test_descriptors_are_kept_back() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert possible_connections(8) == 8
    assert possible_connections(soft) <= soft - KEPT_BACK
