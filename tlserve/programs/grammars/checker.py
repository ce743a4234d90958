"""The program that compiles clients' grammars where they can do no harm: `python -m tlserve.programs.grammars.checker`.

The server starts it and writes requests to its standard input. Each grammar is compiled, and walked a little, in a process of its
own, forked from this one, which has limits on CPU time and memory: what the grammar costs is measured, and a grammar that costs
too much ends with that process. This process has imported the compiler and knows the vocabulary; it never compiles itself.

    server  --CheckSetup, CheckRequest-->  this process  --fork-->  one process a grammar
            <---------CheckReply---------                <--pipe--

It ends when its standard input does, and takes the processes of open checks with it.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import attrs
import msgspec

from tlserve.chat.grammars.compiler import LlguidanceCompiler
from tlserve.errors import ClientError
from tlserve.generation import Grammar
from tlserve.worker.check_messages import CheckReply, CheckRequest, CheckSetup, Frames, Verdict, framed
from tlserve.worker.deep_stack import run_with_deep_stack, stack_bytes

NICE = 19
"""How far a check gives way to the engine's threads: a check waits when all cores are busy."""

SLACK_BYTES = 64 << 20
"""Address space beyond the stack and twice the memory limit: what an allocator reserves and does not use."""

_READ_BYTES = 1 << 16
_PAGE = resource.getpagesize()


@attrs.define
class _Check:
    """A process that compiles one grammar; `ends_at` is the wall time at which it is killed."""

    request: CheckRequest
    pid: int
    pipe: int
    ends_at: float
    answer: bytearray = attrs.field(factory=bytearray)
    is_late: bool = False


class Checker:
    """The loop: requests in, processes out, replies back."""

    def __init__(self, compiler: LlguidanceCompiler, reply_to: int) -> None:
        self._compiler = compiler
        self._reply_to = reply_to
        self._checks: dict[int, _Check] = {}
        self._selector = selectors.DefaultSelector()

    def run(self, source: int, frames: Frames, first: list[bytes]) -> None:
        """Answer the requests in `first` and those read from `source`, until that ends."""
        self._selector.register(source, selectors.EVENT_READ)
        for body in first:
            self._start(msgspec.msgpack.decode(body, type=CheckRequest))
        while True:
            for key, _ in self._selector.select(self._patience()):
                if key.fd != source:
                    self._read_answer(self._checks[key.fd])
                elif data := os.read(source, _READ_BYTES):
                    for body in frames.feed(data):
                        self._start(msgspec.msgpack.decode(body, type=CheckRequest))
                else:
                    self._kill_all()
                    return
            self._kill_late()

    def _patience(self) -> float | None:
        ends = [check.ends_at for check in self._checks.values() if not check.is_late]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _start(self, request: CheckRequest) -> None:
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            _compile_and_exit(self._compiler, request, write_end)
        os.close(write_end)
        self._checks[read_end] = _Check(request, pid, read_end, time.monotonic() + request.wall_s)
        self._selector.register(read_end, selectors.EVENT_READ)

    def _read_answer(self, check: _Check) -> None:
        data = os.read(check.pipe, _READ_BYTES)
        if data:
            check.answer += data
            return
        self._selector.unregister(check.pipe)
        os.close(check.pipe)
        del self._checks[check.pipe]
        _, status, usage = os.wait4(check.pid, 0)
        reply = _reply(check, status, usage.ru_utime + usage.ru_stime)
        os.write(self._reply_to, framed(reply))

    def _kill_late(self) -> None:
        now = time.monotonic()
        for check in self._checks.values():
            if now >= check.ends_at and not check.is_late:
                check.is_late = True
                os.kill(check.pid, signal.SIGKILL)

    def _kill_all(self) -> None:
        for check in self._checks.values():
            with suppress(ProcessLookupError):
                os.kill(check.pid, signal.SIGKILL)


def _reply(check: _Check, status: int, cpu_s: float) -> CheckReply:
    """Return what the process said, or what its end means if it said nothing."""
    number = check.request.number
    if check.answer:
        return msgspec.msgpack.decode(bytes(check.answer), type=CheckReply)
    if check.is_late:
        return CheckReply(number, "died", cpu_s=cpu_s)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGXCPU):
        return CheckReply(number, "time", cpu_s=cpu_s)
    return CheckReply(
        number, "memory", cpu_s=cpu_s
    )  # an allocation failed: the library aborts, or Python has no memory left


# --- in the process of one grammar


def _compile_and_exit(compiler: LlguidanceCompiler, request: CheckRequest, answer_to: int) -> None:
    code = 1
    try:
        _limit(request)
        os.write(answer_to, msgspec.msgpack.encode(_measured(compiler, request)))
        code = 0
    finally:
        os._exit(code)


def _limit(request: CheckRequest) -> None:
    """Bound what this process may use. A timer ends it at the millisecond, the kernel's own limit one second later."""
    os.nice(NICE)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the library prints where it fails, and the reply says so
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, request.cpu_s)
    whole_seconds = int(request.cpu_s) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (whole_seconds, whole_seconds))
    if sys.platform == "linux":  # macOS has no such limit: there the memory is only measured
        size = _status_bytes()[0] + stack_bytes(len(request.source.encode())) + 2 * request.memory_bytes + SLACK_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _measured(compiler: LlguidanceCompiler, request: CheckRequest) -> CheckReply:
    before, began = _status_bytes()[1] if sys.platform == "linux" else _most_resident_bytes(), time.process_time()
    grammar, stop_ids = Grammar(request.source), frozenset(request.stop_ids)
    try:
        made = run_with_deep_stack(lambda: compiler.compile(grammar, stop_ids), len(request.source))
    except ClientError as refusal:
        return CheckReply(request.number, "refused", refusal.message, refusal.param)
    grown = max(0, _most_resident_bytes() - before)
    verdict: Verdict = "memory" if grown > request.memory_bytes else "ok"
    cpu_s = time.process_time() - began
    return CheckReply(request.number, verdict, cpu_s=cpu_s, mask_s=made.slowest_mask_s, memory_bytes=grown)


def _most_resident_bytes() -> int:
    """Return the largest resident memory that this process had so far."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def _status_bytes() -> tuple[int, int]:
    """Return the address space and the resident memory of this process."""
    size, resident = Path("/proc/self/statm").read_text(encoding="ascii").split()[:2]
    return int(size) * _PAGE, int(resident) * _PAGE


class _SetupTokens:
    """The tokens of a setup, as compiling needs them."""

    def __init__(self, setup: CheckSetup) -> None:
        self._spellings = setup.spellings
        self._special = frozenset(setup.special)
        self._single = {spelling: token for token, spelling in enumerate(setup.spellings) if len(spelling) == 1}
        self.vocabulary_size = len(setup.spellings)
        self.special_tokens = dict[str, int]()  # those of the setup have no visible bytes

    def encode(self, text: str) -> list[int]:
        """Return ids byte by byte: fewer tokens may spell the same, and what a grammar costs does not depend on that."""
        return [self._single[spelling] for byte in text.encode() if (spelling := bytes([byte])) in self._single]

    def token_bytes(self, token: int) -> bytes:
        return b"" if token in self._special else self._spellings[token]

    def token_spelling(self, token: int) -> bytes:
        return self._spellings[token]


def main() -> None:
    """Read the setup, then serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the server, which then closes the pipe
    source, frames, bodies = sys.stdin.fileno(), Frames(), list[bytes]()
    while not bodies:
        data = os.read(source, _READ_BYTES)
        if not data:
            return
        bodies += frames.feed(data)
    setup = msgspec.msgpack.decode(bodies[0], type=CheckSetup)
    compiler = LlguidanceCompiler(_SetupTokens(setup), setup.vocabulary_size, source_bytes=setup.source_bytes)
    compiler.warm_up()
    Checker(compiler, sys.stdout.fileno()).run(source, frames, bodies[1:])


if __name__ == "__main__":
    main()
