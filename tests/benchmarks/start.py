"""The cost of a start and of an idle server: `python -m tests.benchmarks.start`, with the real model in the model cache.

Prints, for each repeat, the time to import the command line and the whole server, the time from the start of the process until it
is ready and until its first token, the processor time and wake-ups of all its threads while there are no requests, and its memory
while it answers several requests at once. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

IMPORT = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
SERVER = "tlserve.cli, tlserve.programs.server, tlserve.programs.local_models, tlserve.model.gguf.model"


def import_s(modules: str) -> float:
    """Return the seconds that the import of `modules` takes in a new process."""
    command = [sys.executable, "-c", IMPORT.format(modules)]
    return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


class Started:
    """A server in its own process, ready when this object is made; `ready_s` and `first_token_s` count from its start."""

    def __init__(self, model: str) -> None:
        began = time.perf_counter()
        command = [sys.executable, "-m", "tlserve", "serve", "--model", model, "--port", "0", "--health-port", "0"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._address = self._wait_ready()
        self.ready_s = time.perf_counter() - began
        self.answer(max_tokens=1)
        self.first_token_s = time.perf_counter() - began
        self._proc = Path("/proc") / str(self._process.pid)

    def _wait_ready(self) -> str:
        """Read the log up to the line with the address of the API, and return it: the server accepts connections from then on."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"\bAPI\b.*?http://([^\s/]+)", line):
                return found[1]
        raise SystemExit(f"the server did not start: exit code {self._process.wait()}")

    def answer(self, max_tokens: int) -> None:
        """Request a chat of `max_tokens` and read all of it."""
        connection = http.client.HTTPConnection(self._address, timeout=60)
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": max_tokens, "ignore_eos": True}
        connection.request("POST", "/v1/chat/completions", json.dumps(chat))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()
        connection.close()

    def answer_at_once(self, streams: int, max_tokens: int) -> None:
        """Request chats from `streams` clients at once."""
        with ThreadPoolExecutor(streams) as pool:
            list(pool.map(self.answer, [max_tokens] * streams))

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
        """Wait `duration_s` without a request; the server must not end by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise SystemExit(f"the server ended by itself: exit code {self._process.wait(duration_s)}")

    def stop(self) -> None:
        """Stop the server as an operator does."""
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smol-135m")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--idle-s", type=float, default=5.0)
    parser.add_argument("--streams", type=int, default=8)
    given = parser.parse_args()
    for _ in range(given.repeats):
        command_line_s, all_s, server = import_s("tlserve.cli"), import_s(SERVER), Started(given.model)
        ticks, wake_ups = server.processor_ticks(), server.wake_ups()
        server.watch(given.idle_s)
        print(
            f"import of the command line {command_line_s:.3f} s, of all {all_s:.3f} s; ready {server.ready_s:.2f} s;"
            f" first token {server.first_token_s:.2f} s, processor {ticks / 100:.2f} s; idle for {given.idle_s:g} s:"
            f" {server.processor_ticks() - ticks} ticks, {server.wake_ups() - wake_ups} wake-ups"
        )
        server.answer_at_once(given.streams, max_tokens=256)
        print(
            f"  memory at {given.streams} streams: resident {server.memory_mb('VmRSS'):.0f} MB"
            f" (peak {server.memory_mb('VmHWM'):.0f}), of which private {server.memory_mb('RssAnon'):.0f}"
            f" and of files {server.memory_mb('RssFile'):.0f};"
            f" its share {server.memory_mb('Pss', 'smaps_rollup'):.0f}",
            flush=True,
        )
        server.stop()


if __name__ == "__main__":
    main()
