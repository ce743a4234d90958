"""Give inputs to parsers, and find those that raise another error than a refusal, or take too much time or memory.

    python -m tests.fuzz parsers --count 1000000 --seed 7            # spread over all targets by their shares
    python -m tests.fuzz parsers --target template --count 50000     # one target
    python -m tests.fuzz parsers --target template --seed 7 --only 1234        # one input again, as printed when it failed

An input depends on the seed, its target and its number alone. Each target runs in a process of its own: an input that ends the
process, or never ends, is a fault like any other, and the search continues behind it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import sys
import time
import traceback
import zlib
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import attrs

from tests.fuzz.faults import shown
from tests.fuzz.parsers import file_targets, message_targets, text_targets
from tests.fuzz.parsers.target import Target

TARGETS = {target.name: target for target in (*file_targets.TARGETS, *text_targets.TARGETS, *message_targets.TARGETS)}
PEAK_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
STALLED_S = 60.0
FAULTS_OF_A_TARGET = 20


@attrs.frozen
class Fault:
    """What was wrong with an input, and the command that repeats it. Faults with one `place` have one cause."""

    target: str
    seed: int
    number: int
    reason: str
    place: str
    shown: str = ""

    def __str__(self) -> str:
        replay = f"python -m tests.fuzz parsers --target {self.target} --seed {self.seed} --only {self.number}"
        return f"{self.target}: {self.reason}\n  input {self.shown}\n  again by {replay}"


# --- one process ---------------------------------------------------------------------------------------------------------


def chance(target: Target, seed: int, number: int) -> random.Random:
    """Return the generator of one input."""
    return random.Random(((seed << 40) + number) << 32 | zlib.crc32(target.name.encode()))


def play(target: Target, seed: int, numbers: Iterable[int]) -> Iterator[tuple[int, Fault | None]]:
    """Yield each number after its input was tried, with the fault."""
    for number in numbers:
        given = target.make(chance(target, seed, number))
        before, began = _peak_bytes(), time.process_time()
        try:
            reason, place = _tried(target, given)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            inner = next((frame for frame in reversed(frames) if "/tlserve/" in frame.filename), frames[-1])
            reason, place = f"{type(error).__name__}: {error!s:.300}", f"{type(error).__name__} {inner.name}"
        took_s, grown = time.process_time() - began, _peak_bytes() - before
        if not reason and took_s > target.cpu_s:
            reason, place = f"took {took_s:.1f} s of processor time", "time"
        if not reason and grown > target.memory_bytes:
            reason, place = f"took {grown >> 20} MB", "memory"
        yield number, Fault(target.name, seed, number, reason, place, shown(given)) if reason else None


def _tried(target: Target, given: object) -> tuple[str, str]:
    try:
        target.use(given)
    except target.refusals as error:
        message = str(error)
        return ("", "") if message else (f"{type(error).__name__} has no message", "message")
    return "", ""


def _peak_bytes() -> int:
    """Return the most memory that this process had; Linux counts what was there before its program began in `ru_maxrss`."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text(encoding="ascii").partition("VmHWM:")[2].split()[0]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT_BYTES


# --- the processes -------------------------------------------------------------------------------------------------------


@attrs.frozen
class Outcome:
    """The figures of a target's search: how many inputs, in how many seconds, and the faults of different places."""

    target: str
    inputs: int
    seconds: float
    faults: Sequence[Fault]


def search(target: Target, seed: int, count: int) -> Outcome:
    """Try `count` inputs of a target in processes of their own."""
    began, at = time.monotonic(), 0
    faults: dict[str, Fault] = {}
    while at < count and len(faults) < FAULTS_OF_A_TARGET:
        at = _search_from(target, seed, at, count, faults)
    return Outcome(target.name, at, time.monotonic() - began, list(faults.values()))


def _search_from(target: Target, seed: int, start: int, count: int, faults: dict[str, Fault]) -> int:
    """Run one process from input `start`; return the number of the first input that it did not finish with."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    at = context.Value("q", start, lock=False)
    process = context.Process(target=_work, args=(target, seed, start, count, at, sending))
    process.start()
    sending.close()
    seen, since = start, time.monotonic()
    while True:
        if receiving.poll(1.0):
            try:
                fault = receiving.recv()
            except EOFError:
                break
            faults.setdefault(fault.place, fault)
        if at.value != seen:
            seen, since = at.value, time.monotonic()
        elif time.monotonic() - since > STALLED_S:
            process.kill()
            break
    process.join()
    receiving.close()
    if at.value < count:
        reason = f"the process ended with {process.exitcode}, or the input took more than {STALLED_S:.0f} s"
        whole = shown(target.make(chance(target, seed, at.value)))
        faults.setdefault(f"ended {process.exitcode}", Fault(target.name, seed, at.value, reason, "ended", whole))
        return int(at.value) + 1
    return count


def _work(target: Target, seed: int, start: int, count: int, at: object, sending: Connection) -> None:
    if target.quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries print where they fail
    sent = set[str]()
    for number, fault in play(target, seed, range(start, count)):
        at.value = number + 1  # type: ignore[attr-defined]
        if fault is not None and fault.place not in sent:
            sent.add(fault.place)
            sending.send(fault)


# --- the command ---------------------------------------------------------------------------------------------------------


def counts(names: Sequence[str], count: int) -> dict[str, int]:
    """Return how many of `count` inputs each target gets."""
    whole = sum(TARGETS[name].share for name in names)
    return {name: max(1, round(count * TARGETS[name].share / whole)) for name in names}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz parsers", description="Fuzz the parsers of files and text."
    )
    parser.add_argument("--count", type=int, default=100_000, help="inputs, over all targets (default 100000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--target", action="append", choices=sorted(TARGETS), help="only this target; can be given again"
    )
    parser.add_argument("--only", type=int, help="the number of one input of one target")
    arguments = parser.parse_args(words)
    names = arguments.target or list(TARGETS)
    if arguments.only is not None:
        return _again(TARGETS[names[0]], arguments.seed, arguments.only)
    outcomes = []
    for name, count in counts(names, arguments.count).items():
        outcome = search(TARGETS[name], arguments.seed, count)
        outcomes.append(outcome)
        rate = outcome.inputs / outcome.seconds
        print(f"{name:18} {outcome.inputs:10} inputs {rate:9.0f} a second  {len(outcome.faults)} faults", flush=True)
        for fault in outcome.faults:
            print(fault, flush=True)
    inputs, seconds = sum(o.inputs for o in outcomes), sum(o.seconds for o in outcomes)
    found = sum(len(o.faults) for o in outcomes)
    print(f"{inputs} inputs in {seconds:.0f} s, {inputs / seconds:.0f} a second: {found} faults")
    return 1 if found else 0


def _again(target: Target, seed: int, number: int) -> int:
    """Try one input in this process, and let its error out."""
    given = target.make(chance(target, seed, number))
    print(f"{given!r}")
    with_fault = [fault for _, fault in play(target, seed, [number]) if fault]
    print(with_fault[0] if with_fault else "no fault")
    if with_fault:
        target.use(given)
    return len(with_fault)


if __name__ == "__main__":
    raise SystemExit(main())
