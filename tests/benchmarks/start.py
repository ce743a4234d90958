"""The cost of a start and of an idle server: `python -m tests.benchmarks.start`, with the real model in the model cache.

Prints, for each repeat, the time to import the command line, the time from the start of the process until it is ready, its
memory, and the processor time and wake-ups of all its threads while there are no requests. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

IMPORT = "import time; t = time.perf_counter(); import tlserve.cli; print(time.perf_counter() - t)"


def import_s() -> float:
    """Return the seconds that `import tlserve.cli` takes in a new process."""
    return float(subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, check=True, text=True).stdout)


class Started:
    """A server in its own process, ready when this object is made; `ready_s` is the time that it took."""

    def __init__(self, model: str) -> None:
        began = time.perf_counter()
        command = [sys.executable, "-m", "tlserve", "serve", "--model", model, "--port", "0", "--health-port", "0"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._wait_ready()
        self.ready_s = time.perf_counter() - began
        self._proc = Path("/proc") / str(self._process.pid)

    def _wait_ready(self) -> None:
        """Read the log up to the line with the address of the API: the server accepts connections from then on."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if re.search(r"\bAPI\b.*http://", line):
                return
        raise SystemExit(f"the server did not start: exit code {self._process.wait()}")

    def memory_mb(self, name: str) -> float:
        """Return a field of /proc/PID/status in MB (of a million bytes)."""
        found = re.search(rf"^{name}:\s+(\d+) kB", (self._proc / "status").read_text(), re.MULTILINE)
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
    given = parser.parse_args()
    for _ in range(given.repeats):
        imported_s, server = import_s(), Started(given.model)
        ticks, wake_ups = server.processor_ticks(), server.wake_ups()
        server.watch(given.idle_s)
        print(
            f"import {imported_s:.3f} s  ready {server.ready_s:.2f} s  resident {server.memory_mb('VmRSS'):.0f} MB"
            f" (peak {server.memory_mb('VmHWM'):.0f})  idle for {given.idle_s:g} s:"
            f" {server.processor_ticks() - ticks} ticks, {server.wake_ups() - wake_ups} wake-ups",
            flush=True,
        )
        server.stop()


if __name__ == "__main__":
    main()
