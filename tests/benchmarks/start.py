"""The cost of a start and of an idle server: `python -m tests.benchmarks.start`, with the real model in the model cache.

Prints, for each repeat, the time to import the command line and the whole server, the time from the start of the process until
it is ready and until the first token of a stream reaches a client, the processor time and wake-ups of all its threads without
requests, and its memory after several requests at once. `--beside COMMAND` starts another server in the same way, in turn. The
files are warm: a first round does not count, and Python's bytecode is kept, as an installed package has it. Linux only: it reads
/proc.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

IMPORT = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
SERVER = "tlserve.cli, tlserve.programs.server, tlserve.programs.local_models, tlserve.model.gguf.model"
OURS = f"{sys.executable} -m tlserve serve --host 127.0.0.1 --port {{port}} --health-port 0"
PROBE_S = 0.005
"""The pause between two questions whether a server is ready: what the times below are exact to."""


def import_s(modules: str, environment: Mapping[str, str]) -> float:
    """Return the seconds that the import of `modules` takes in a new process."""
    command = [sys.executable, "-c", IMPORT.format(modules)]
    done = subprocess.run(command, capture_output=True, check=True, text=True, env=environment)
    return float(done.stdout)


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Started:
    """A server in its own process, ready when this object is made; `ready_s` and `first_token_s` count from its start."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """`command` has `{port}` where the port belongs. The server answers GET /health with 200 when it is ready."""
        port = free_port()
        began = time.perf_counter()
        words = [word.format(port=port) for word in command]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(words, stdout=quiet, stderr=quiet, env=environment)
        self._address = f"127.0.0.1:{port}"
        self._proc = Path("/proc") / str(self._process.pid)
        self._wait_ready()
        self.ready_s = time.perf_counter() - began
        self.answer(max_tokens=1)
        self.first_token_s = time.perf_counter() - began

    def _wait_ready(self) -> None:
        """Ask until the server says that it is ready."""
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection(self._address, timeout=60)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            self.watch(PROBE_S)

    def answer(self, max_tokens: int, about: str = "Hi") -> None:
        """Request the stream of a chat of `max_tokens` and read all of it."""
        connection = http.client.HTTPConnection(self._address, timeout=60)
        chat = {
            "messages": [{"role": "user", "content": about}],
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        connection.request("POST", "/v1/chat/completions", json.dumps(chat), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert b"data:" in response.read()
        connection.close()

    def answer_at_once(self, streams: int, max_tokens: int) -> None:
        """Request chats from `streams` clients at once, no two about the same."""
        with ThreadPoolExecutor(streams) as pool:
            list(pool.map(lambda n: self.answer(max_tokens, f"Tell me about the number {n}."), range(streams)))

    def memory_mb(self, name: str, file: str = "status") -> float:
        """Return a field of /proc/PID/status or another `file` in MB (of a million bytes)."""
        found = re.search(rf"^{name}:\s+(\d+) kB", (self._proc / file).read_text(), re.MULTILINE)
        return int(found[1]) * 1024 / 1e6 if found else 0.0

    def processor_ticks(self) -> int:
        """Return the processor time of all threads so far, in hundredths of a second."""
        fields = (self._proc / "stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    def wake_ups(self) -> int:
        """Return the number of times that any thread has slept and woken so far."""
        found = (
            re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.MULTILINE)
            for task in (self._proc / "task").iterdir()
        )
        return sum(int(match[1]) for match in found if match)

    def watch(self, duration_s: float) -> None:
        """Wait `duration_s`; the server must not end by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise SystemExit(f"the server ended by itself: exit code {self._process.wait(duration_s)}")

    def stop(self) -> None:
        """Stop the server as an operator does."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()


def measured(name: str, command: Sequence[str], environment: Mapping[str, str], given: argparse.Namespace) -> str:
    """Return the lines of one start."""
    server = Started(command, environment)
    try:
        ticks = server.processor_ticks()
        server.watch(given.settle_s)
        rested, wake_ups = server.processor_ticks(), server.wake_ups()
        server.watch(given.idle_s)
        idle = f"{server.processor_ticks() - rested} ticks, {server.wake_ups() - wake_ups} wake-ups"
        server.answer_at_once(given.streams, given.tokens)
        return (
            f"{name}: ready {server.ready_s:.2f} s; first token {server.first_token_s:.2f} s, processor {ticks / 100:.2f} s;"
            f" idle for {given.idle_s:g} s: {idle}\n"
            f"  memory after {given.streams} streams of {given.tokens} tokens: resident {server.memory_mb('VmRSS'):.0f} MB"
            f" (peak {server.memory_mb('VmHWM'):.0f}), of which private {server.memory_mb('RssAnon'):.0f}"
            f" and of files {server.memory_mb('RssFile'):.0f};"
            f" its share {server.memory_mb('Pss', 'smaps_rollup'):.0f}"
        )
    finally:
        server.stop()


def parsed() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smol-135m")
    parser.add_argument("--set", action="append", default=[], help="a setting of the server, as NAME=VALUE")
    parser.add_argument("--beside", action="append", default=[], help="another server's command, with {port}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--settle-s", type=float, default=2.0, help="before the server counts as idle")
    parser.add_argument("--idle-s", type=float, default=5.0)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    given = parsed()
    settings = [word for setting in given.set for word in ("--set", setting)]
    servers = {"tlserve": [*OURS.split(), "--model", given.model, *settings]}
    servers |= {Path(shlex.split(command)[0]).name: shlex.split(command) for command in given.beside}
    with tempfile.TemporaryDirectory() as bytecode:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment = {**kept, "PYTHONPYCACHEPREFIX": bytecode}
        for command in servers.values():
            Started(command, environment).stop()  # warms the files
        for _ in range(given.repeats):
            modules = (import_s("tlserve.cli", environment), import_s(SERVER, environment))
            print(f"import of the command line {modules[0]:.3f} s, of all {modules[1]:.3f} s")
            for name, command in servers.items():
                print(measured(name, command, environment, given), flush=True)


if __name__ == "__main__":
    main()
