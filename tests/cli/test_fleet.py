"""The commands `tlserve fleet` and `tlserve node`: a head starts its nodes, reports their states, and ends them with itself."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.cli.processes import ServerProcess, server_process, wait_gone, wait_until
from tests.kit.http.http_calls import chat, get, post
from tests.kit.model.tiny_models import write_tiny_gguf
from tlserve.cli.exit_codes import exit_code_of
from tlserve.errors import OperatorError, SettingsError
from tlserve.testing import serve_in_thread

CHAT = "/v1/chat/completions"


def tiny(directory: Path) -> Path:
    return write_tiny_gguf(directory / "tiny.gguf")


def nodes_of(head: ServerProcess) -> list[dict[str, object]]:
    nodes: list[dict[str, object]] = get(head.health_address, "/healthz").json["fleet"]
    return nodes


@pytest.fixture
def head(tmp_path):
    with server_process("fleet", "--nodes", "2", "--model", str(tiny(tmp_path))) as process:
        yield process


def status(head: ServerProcess, *options: str) -> subprocess.CompletedProcess[str]:
    port = head.health_address.rpartition(":")[2]
    command = [sys.executable, "-m", "tlserve", "fleet", "status", "--health-port", port, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_a_head_with_two_nodes_answers_as_one_server_and_lists_them(head, tmp_path) -> None:
    body = chat("Hello", model="tiny", max_tokens=12, temperature=1.0, seed=7, logprobs=True)
    answer = post(head.address, CHAT, body).json
    with serve_in_thread(tiny(tmp_path)) as alone:
        expected = post(alone.address, CHAT, body).json
    assert answer["choices"] == expected["choices"]
    assert answer["system_fingerprint"] == expected["system_fingerprint"]
    (card,) = get(head.address, "/v1/models").json["data"]
    assert (card["capabilities"]["backend"], card["loaded"]) == ("fleet", True)
    assert [(node["node"], node["state"]) for node in nodes_of(head)] == [("node-1", "ready"), ("node-2", "ready")]
    told = status(head)
    assert (told.returncode, told.stderr) == (0, "")
    assert [line.split()[:3] for line in told.stdout.splitlines() if "node-" in line] == [
        ["node-1", "ready", "tiny"],
        ["node-2", "ready", "tiny"],
    ]
    assert json.loads(status(head, "--json").stdout)[1]["node"] == "node-2"


@pytest.mark.slow
def test_a_node_that_ends_is_started_again(head) -> None:
    head.wait_line(" API +")
    victim = head.children()[0]
    os.kill(victim, signal.SIGKILL)
    head.wait_line("has ended: exit code -9; starting it again")
    wait_until(lambda: [node["state"] for node in nodes_of(head)] == ["ready", "ready"])
    assert len(head.children()) == 2
    assert victim not in head.children()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)])
def test_no_node_outlives_its_head(head, number, code) -> None:
    head.wait_line(" API +")
    nodes = head.children()
    assert len(nodes) == 2
    head.send_signal(number)
    assert head.wait_exit() == code
    for pid in nodes:
        wait_gone(pid)


@pytest.mark.slow
def test_a_node_that_does_not_start_ends_the_head_with_its_reason(tmp_path) -> None:
    model = str(tiny(tmp_path))
    with server_process("fleet", "--nodes", "1", "--model", model, "--set", "kv_memory_bytes=1") as head:
        assert head.wait_exit() == exit_code_of(OperatorError(""))
        assert "node-1 did not start: tlserve: " in head.lines[-1]
        assert "kv_memory_bytes" in head.lines[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "a head needs nodes: give one of fleet.nodes"),
        (["--nodes", "2", "--set", "fleet.nodes=http://127.0.0.1:1"], "a head has nodes of one kind"),
        (["--set", "fleet.ray_address=127.0.0.1:1"], "fleet.ray_token_file is missing"),
        (["--set", "fleet.nodes=nowhere"], "must be URLs with a scheme, a host and a port"),
    ],
)
def test_a_head_without_its_nodes_is_refused_by_the_name_of_the_setting(arguments, said) -> None:
    with server_process("fleet", "--model", "succ", *arguments) as head:
        assert head.wait_exit() == exit_code_of(SettingsError(()))
        assert said in "\n".join(head.lines)


def test_status_without_a_head_names_the_address() -> None:
    with serve_in_thread("succ") as server:
        port = server.health_address.rpartition(":")[2]
        command = [sys.executable, "-m", "tlserve", "fleet", "status", "--health-port"]
        no_head = subprocess.run([*command, port], capture_output=True, text=True, timeout=60, check=False)
        nobody = subprocess.run([*command, "1"], capture_output=True, text=True, timeout=60, check=False)
    assert "is not a fleet head" in no_head.stderr
    assert "no head answers at 127.0.0.1:1" in nobody.stderr
    assert no_head.returncode == nobody.returncode != 0


def test_a_plain_server_does_not_pretend_to_be_a_head() -> None:
    with server_process("serve", "--model", "succ", "--set", "fleet.nodes=http://127.0.0.1:1") as server:
        assert server.wait_exit() == exit_code_of(SettingsError(()))
        assert "fleet.nodes is for the head of a fleet: use `tlserve fleet`" in server.lines[-1]
