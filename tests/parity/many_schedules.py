"""Play random schedules of the real model until time is up: `python -m tests.parity.many_schedules --minutes 5`.

Every built instruction set, one and two threads, and all numerics take turns. The first request whose bits differ from those
alone ends the run, with its seed. One line per minute gives the number of schedules so far and the cases that they reached.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import time
from collections import Counter
from itertools import count, product

from tests.kit.engine.real_runs import play, real_models
from tlserve.config.paths import find_model
from tlserve.kernels.native import native_isas

NUMERICS = tuple(product(("int12", "int8", "f32"), ("f16", "f32")))
COUNTED = (
    "steps_total",
    "generated_tokens_total",
    "preemptions_total",
    "kv_evictions_total",
    "prefix_cache_hits_total",
    "accepted_tokens_total",
)
LINE_EVERY_S = 60.0


def main() -> int:
    """Play and print; return the exit code."""
    parser = argparse.ArgumentParser(description="play random schedules of the real model until time is up")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first schedule")
    parser.add_argument("--numerics", type=int, choices=range(len(NUMERICS)), help="only these of " + str(NUMERICS))
    arguments = parser.parse_args()
    chosen = NUMERICS if arguments.numerics is None else NUMERICS[arguments.numerics :][:1]
    ends = time.monotonic() + 60 * arguments.minutes
    for part, numerics in enumerate(chosen):
        share_s = max(0.0, ends - time.monotonic()) / (len(chosen) - part)
        if not play_for(share_s, numerics, arguments.seed):
            return 1
    return 0


def play_for(seconds: float, numerics: tuple[str, str], first_seed: int) -> bool:
    """Play schedules of one numerics for some time; return whether all were right."""
    path = find_model("smol-135m", os.environ)
    if path is None:
        sys.exit("the real model is not in the cache: run `tlserve pull smol-135m`")
    models = real_models(path, *numerics, tuple(product(native_isas() or ("",), (1, 2))))
    reached: Counter[str] = Counter()
    ends, line_due = time.monotonic() + seconds, time.monotonic() + LINE_EVERY_S
    for played, seed in enumerate(count(first_seed), 1):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                statistics = play(models, seed)
        except AssertionError as error:
            print(f"{numerics}: {error}", flush=True)
            return False
        reached.update({name: getattr(statistics, name) for name in COUNTED})
        now = time.monotonic()
        if now >= min(ends, line_due):
            line_due = now + LINE_EVERY_S
            print(f"{numerics}: {played} schedules from seed {first_seed} passed; {dict(reached)}", flush=True)
        if now >= ends:
            break
    return True


if __name__ == "__main__":
    sys.exit(main())
