"""Log lines never wait for their reader: they are kept, then dropped and counted."""

import logging
import os
import sys
from collections.abc import Iterator
from io import TextIOWrapper

import pytest

from tlserve.telemetry.log_stream import PatientHandler


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIOWrapper]]:
    read_end, write_end = os.pipe()
    with open(write_end, "w", encoding="utf-8") as stream:
        yield read_end, stream
    os.close(read_end)


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("tlserve", logging.INFO, "", 0, text, None, None)


def read_all(fd: int) -> list[str]:
    os.set_blocking(fd, False)
    data = b""
    while True:
        try:
            data += os.read(fd, 1 << 20)
        except BlockingIOError:
            return data.decode().splitlines()


def test_lines_arrive_in_order(pipe: tuple[int, TextIOWrapper]) -> None:
    read_end, stream = pipe
    handler = PatientHandler(stream)
    for number in range(100):
        handler.emit(record(f"line {number}"))
    assert read_all(read_end) == [f"line {number}" for number in range(100)]


def test_lines_for_a_full_pipe_are_dropped_and_counted(pipe: tuple[int, TextIOWrapper]) -> None:
    read_end, stream = pipe
    handler = PatientHandler(stream, kept_bytes=10_000)
    for number in range(5_000):
        handler.emit(record(f"line {number:060}"))
    assert handler.dropped > 3_000
    before = read_all(read_end)
    handler.emit(record("the next one"))
    lines = before + read_all(read_end)
    assert lines[-1] == "the next one"
    assert lines[-2] == f"log lines dropped, as nobody read them: {handler.dropped}"
    assert len(lines) + handler.dropped == 5_000 + 2


def test_a_line_longer_than_the_pipe_arrives_whole(pipe: tuple[int, TextIOWrapper]) -> None:
    read_end, stream = pipe
    handler = PatientHandler(stream)
    text = "x" * 300_000
    handler.emit(record(text))
    parts = [*read_all(read_end)]
    while sum(map(len, parts)) < len(text):
        handler.emit(record("more"))
        parts += read_all(read_end)
    assert "".join(parts).startswith(text)


def test_a_closed_pipe_drops_the_line() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w", encoding="utf-8") as stream:
        handler = PatientHandler(stream)
        handler.emit(record("into the void"))
        assert handler.dropped == 1
        handler.close()


def test_a_closed_handler_has_offered_the_rest() -> None:
    program = (
        "import logging, sys; from tlserve.telemetry.logs import set_up_logs; set_up_logs('info');"
        "logging.getLogger('tlserve').info('last words')"
    )
    read_end, write_end = os.pipe()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", program],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, write_end, 2)],
    )
    os.close(write_end)
    with open(read_end, encoding="utf-8") as output:
        assert "last words" in output.read()
    assert os.waitpid(pid, 0)[1] == 0
