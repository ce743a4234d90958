"""Break the scheduler, the drain and the fleet, and count the seeds until the simulation notices.

    python -m tests.simulation.mutants.run [--seeds 200] [scheduler_01 ...]

Each `*.patch` here is one defect: a line `Defect:` that says what is wrong, then a unified diff. It is applied to a copy of the
tree, where the seeds from 0 on are played until one fails; for the fleet, only those that have one, with faults. One line per
mutant; the exit code is 1 if one survives all seeds or does not apply. The tree without a patch must hold in all of them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import attrs

from tests.mutants.run import Mutant, apply, check_imported, copied_tree, environment

HERE = Path(__file__).parent
AREAS = ("scheduler", "drain", "fleet")
TIMEOUT_S = 900.0
AT_ONCE = 2

_PLAYED = re.compile(r"^(\d+) runs in ", re.MULTILINE)
_DEFECT = re.compile(r"^Defect: (.+)$", re.MULTILINE)


@attrs.frozen
class Played:
    """What the simulation said: whether a run failed, the number of runs, and the first thing that did not hold."""

    found: bool
    seeds: int
    said: str
    applies: bool = True


def simulation_mutants(only: Sequence[str] = ()) -> list[Mutant]:
    """Return all mutants in order, or those whose name begins with one of `only`."""
    found = [Mutant(path) for path in sorted(HERE.glob("*.patch"))]
    return [mutant for mutant in found if not only or mutant.name.startswith(tuple(only))]


def defect_of(mutant: Mutant) -> str:
    """Return what is wrong in a mutant; raises ValueError if its head does not say it."""
    found = _DEFECT.match(mutant.path.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{mutant.path.name} does not begin with a line 'Defect: ...'")
    return found[1]


def play(mutant: Mutant | None, seeds: int) -> Played:
    """Play the seeds in a copy of the tree with `mutant`, or without one; no end within TIMEOUT_S counts as found."""
    with copied_tree() as copy:
        trouble = "" if mutant is None else apply(mutant, copy)
        if trouble:
            return Played(False, 0, f"the patch does not apply: {trouble}", applies=False)
        check_imported(copy)
        command = [sys.executable, "-m", "tests.simulation", "--seeds", "0", str(seeds), "--minutes", "60", "--whole"]
        command += ["--fleet"] if mutant is not None and mutant.name.startswith("fleet") else []
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment(copy), capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return Played(True, seeds, "a run does not end")
    played = _PLAYED.search(done.stdout)
    if played is None:
        return Played(True, 0, f"the simulation itself ended: {(done.stderr.strip() or '-').splitlines()[-1]}")
    said = [line.strip() for line in done.stdout.splitlines() if line.startswith("    ")]
    return Played(done.returncode == 1, int(played[1]), said[0] if said else "all good")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants and return the exit code."""
    parser = argparse.ArgumentParser(description="count the seeds until the simulation finds each mutant")
    parser.add_argument("only", nargs="*", help="beginnings of names, such as drain_01; none: all")
    parser.add_argument("--seeds", type=int, default=200, help="seeds that are played at most (default 200)")
    given = parser.parse_args(arguments)
    chosen, began = simulation_mutants(given.only), time.monotonic()
    if not chosen:
        parser.error("there is no mutant of that name")
    with ThreadPoolExecutor(AT_ONCE) as threads:
        results = list(map(_tell, chosen, threads.map(partial(play, seeds=given.seeds), chosen)))
    for area in AREAS:
        own = [result for mutant, result in zip(chosen, results, strict=True) if mutant.name.startswith(area)]
        most = max((result.seeds for result in own if result.found), default=0)
        print(f"{area}: {sum(result.found for result in own)} of {len(own)} found, in {most} seeds at most")
    found = sum(result.found for result in results)
    print(f"{found} of {len(chosen)} mutants found in {time.monotonic() - began:.0f} s")
    return int(found < len(chosen))


def _tell(mutant: Mutant, result: Played) -> Played:
    word = f"seed {result.seeds:4d}" if result.found else ("SURVIVED " if result.applies else "BROKEN   ")
    print(f"{word}  {mutant.name:<50} {result.said[:110]}", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
