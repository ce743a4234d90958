"""Real processes that cannot start: one line on standard error, the documented code, no traceback."""

import socket
import subprocess
import sys

import pytest

FREE = ("--port", "0", "--health-port", "0")


def tlserve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tlserve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.spec("CLI-3")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--set", "threads=x"), 4, "engine.threads must be a whole number"),
        (("--config", "/does/not/exist.toml"), 4, "cannot be read"),
        (("--model", "nope", *FREE), 5, "there is no model 'nope'"),
        (
            ("--model", "succ", "--host", "192.0.2.1", *FREE),
            10,
            "cannot listen on 192.0.2.1:0: Cannot assign requested address",
        ),
    ],
)
def test_a_server_that_cannot_start_says_why_in_one_line(arguments: tuple[str, ...], code: int, words: str) -> None:
    ended = tlserve(*arguments)
    (line,) = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (code, "")
    assert line.startswith("tlserve: ")
    assert words in line


@pytest.mark.spec("CLI-3")
def test_a_port_in_use_is_reported_before_a_model_is_looked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = tlserve("--model", "nope", "--host", "127.0.0.1", "--port", str(taken.getsockname()[1]))
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 7
    assert "in use" in line


def test_a_health_port_in_use_is_named_by_its_argument() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = tlserve("--model", "succ", "--port", "0", "--health-port", str(taken.getsockname()[1]))
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 7
    assert "in use" in line
    assert "--health-port" in line


def test_a_reader_that_closes_the_output_is_not_a_fault() -> None:
    command = [sys.executable, "-m", "tlserve", "check-config"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141
