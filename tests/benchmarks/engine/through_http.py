"""What HTTP, text and threads add to a token: its time through a server at one stream, over that of the bare engine's step.

Owns the turns: server, engine, server, engine. Both sides decode the same number of tokens after prompts of the same length.
Does not start the server.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import attrs

from tests.benchmarks.engine.steps import BareEngine, EnginePlan
from tlserve.bench.comparison import Spread
from tlserve.bench.load import Closed
from tlserve.bench.run import LoadPlan, run_bench
from tlserve.bench.target import TargetServer
from tlserve.bench.workload import Workload

ANSWERS = 4
WORDS = 64


@attrs.frozen(kw_only=True)
class ThroughHttp:
    """Times in milliseconds per token at one stream, and the server's over the engine's."""

    engine_ms: float
    http_ms: float
    ratio: Spread


async def measure_through_http(
    bare: BareEngine, target: TargetServer, plan: EnginePlan, done: Callable[[], None]
) -> ThroughHttp:
    """Take turns `plan.repeats` times; `target` serves the model of `bare`. Raises the errors of `run_bench`."""
    engine_ms, http_ms = [], []
    for _ in range(plan.repeats):
        prompt_tokens, served_ms = await _serve(target, plan)
        timed = bare.time_steps(1, prompt_tokens, plan.steps)
        engine_ms.append(timed.seconds * 1000 / timed.tokens)
        http_ms.append(served_ms)
        done()
    each = [served / own for served, own in zip(http_ms, engine_ms, strict=True)]
    own, served = statistics.median(engine_ms), statistics.median(http_ms)
    return ThroughHttp(engine_ms=own, http_ms=served, ratio=Spread(median=served / own, low=min(each), high=max(each)))


async def _serve(target: TargetServer, plan: EnginePlan) -> tuple[int, float]:
    """Return the tokens of a prompt as the server counts them, and the milliseconds per token."""
    workload = Workload(prompt_words=WORDS, output_tokens=plan.steps)
    seed = random.SystemRandom().getrandbits(32)
    once = LoadPlan(loads=(Closed(1),), workload=workload, rounds=ANSWERS, seed=seed)
    figures = (await run_bench(once, [target], lambda: None))[0].figures
    assert figures.per_token_ms is not None
    return figures.prompt_tokens // figures.answered, figures.per_token_ms.p50
