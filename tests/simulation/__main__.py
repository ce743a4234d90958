"""Simulate the whole server: `python -m tests.simulation`.

python -m tests.simulation --minutes 10                     # new seeds each time; the first one is printed
python -m tests.simulation --seeds 0 5000                   # these seeds
python -m tests.simulation --seed 17                        # one seed
python -m tests.simulation --seed 17 --clients 0,3 --faults none --stops none      # a part of it, as a failure prints it
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import sys
import time
from collections.abc import Iterable

import attrs

from tests.simulation.plan import make_plan
from tests.simulation.search import Selection, find, judged


def main() -> int:
    """Play what the arguments say; return 1 if a run failed."""
    arguments = parsed()
    if not arguments.logs:
        logging.disable(logging.CRITICAL)
    if arguments.seed is not None:
        return play_one(arguments)
    began = time.monotonic()
    first = random.randrange(1 << 40)
    seeds: Iterable[int] = range(*arguments.seeds) if arguments.seeds else itertools.count(first)
    if arguments.fleet:
        seeds = (seed for seed in seeds if (plan := make_plan(seed)).nodes and plan.faults)
    print(f"from seed {arguments.seeds[0] if arguments.seeds else first}", flush=True)
    played, finding = find(seeds, limit_s=60 * arguments.minutes, small=not arguments.whole)
    took_s = time.monotonic() - began
    print(f"{played} runs in {took_s:.0f} s, {played / took_s:.1f} a second: {'one failed' if finding else 'all good'}")
    if finding is not None:
        print(finding)
    return int(finding is not None)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Simulate the whole server.")
    parser.add_argument("--seed", type=int, help="play one seed")
    parser.add_argument("--seeds", type=int, nargs=2, metavar=("FROM", "TO"), help="play a range of seeds")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to play new seeds (default 1)")
    for name in ("clients", "faults", "stops"):
        parser.add_argument(f"--{name}", type=numbers, help=f"play only these {name} of the seed, or none")
    parser.add_argument("--fleet", action="store_true", help="leave out the seeds that have no fleet with faults")
    parser.add_argument("--whole", action="store_true", help="do not make a failing run small")
    parser.add_argument("--logs", action="store_true", help="show the server's log")
    return parser.parse_args()


def numbers(text: str) -> tuple[int, ...]:
    return () if text == "none" else tuple(int(part) for part in text.split(","))


def play_one(arguments: argparse.Namespace) -> int:
    selection = Selection.whole(arguments.seed)
    chosen = {name: getattr(arguments, name) for name in ("clients", "faults", "stops")}
    selection = attrs.evolve(selection, **{name: value for name, value in chosen.items() if value is not None})
    found = judged(selection.plan())
    print("\n".join(found) or "all good")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
