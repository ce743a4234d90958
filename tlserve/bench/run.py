"""One bench: for each number of streams, a run of prefills and a run of answers.

Owns the order of the runs and the server's own step times around them. Refuses to print.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from tlserve.bench.figures import Figures, figures_of
from tlserve.bench.load import run_clients
from tlserve.bench.workload import Workload
from tlserve.config.addresses import Address
from tlserve.generation import EngineStatistics


@attrs.frozen(kw_only=True)
class Plan:
    """What is measured. `rounds`: requests of each client in the run of answers."""

    model: str
    streams: Sequence[int] = (1, 8, 32)
    prefill_words: int = 256
    prompt_words: int = 64
    output_tokens: int = 64
    rounds: int = 2
    seed: int = 0

    @property
    def requests(self) -> int:
        """Return how many requests the whole bench sends."""
        return sum(streams * (1 + self.rounds) for streams in self.streams) + 1


async def run_bench(
    plan: Plan, address: Address, statistics: Callable[[], EngineStatistics] | None, done: Callable[[], None]
) -> list[Figures]:
    """Run `plan` against the server at `address`; `done` is called after each request.

    `statistics` gives the engine's own figures, where the engine is at hand.
    """
    prefills = Workload(model=plan.model, prompt_words=plan.prefill_words, output_tokens=1).bodies(plan.seed)
    answers = Workload(model=plan.model, prompt_words=plan.prompt_words, output_tokens=plan.output_tokens)
    bodies = answers.bodies(plan.seed + 1)
    await run_clients(address, bodies, clients=1, requests=1, done=done)  # warm-up, not counted
    found = []
    for streams in plan.streams:
        prefill = await run_clients(address, prefills, clients=streams, requests=streams, done=done)
        before = statistics() if statistics else None
        decode = await run_clients(address, bodies, clients=streams, requests=streams * plan.rounds, done=done)
        share = outside_forward(before, statistics()) if statistics and before else None
        found.append(figures_of(streams, prefill, decode, share))
    return found


def outside_forward(before: EngineStatistics, after: EngineStatistics) -> float:
    """Return the share of the engine's step time that was not spent in the forward pass."""
    step_s = after.step_seconds_total - before.step_seconds_total
    forward_s = after.forward_seconds_total - before.forward_seconds_total
    return 1 - forward_s / step_s if step_s > 0 else 0.0
