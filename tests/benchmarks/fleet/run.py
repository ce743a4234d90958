"""All figures of a fleet in one run: the cost of a head, the gain of a second node, the cost of faults, the gain of affinity.

Owns the order, and which processes each part runs on. Does not print.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import attrs

from tests.benchmarks.fleet.affinity import Talks, measure_hits
from tests.benchmarks.fleet.faults import measure_fault
from tests.benchmarks.fleet.setup import nodes_and_head, run_head, run_node
from tests.benchmarks.fleet.throughput import FleetComparison, compare_fleet
from tlserve.bench.comparison import Spread, ratio_of, spread_of
from tlserve.bench.load import Closed
from tlserve.bench.run import LoadPlan
from tlserve.bench.workload import Workload
from tlserve.config.model_id import served_model_id

PARTS = ("head", "cores", "kill", "hang", "affinity")
NODES = 3
FAULT_STREAMS = 32


@attrs.frozen(kw_only=True)
class FleetPlan:
    """What is measured, and how often; `streams` and `output_tokens` apply to the parts that have clients."""

    model: str
    parts: Sequence[str] = PARTS
    streams: Sequence[int] = (1, 8, 32)
    output_tokens: int = 64
    rounds: int = 2
    repeats: int = 5
    seed: int = 0

    @property
    def served(self) -> str:
        """Return the id under which the nodes serve the model."""
        return served_model_id(self.model)

    def total(self) -> int:
        """Return the number of calls of `done`."""
        plan, talks = self.throughput(), Talks()
        counts = {
            "head": plan.total(2),
            "cores": self.many().total(2),
            "kill": self.repeats,
            "hang": self.repeats,
            "affinity": 2 * self.repeats * talks.conversations * talks.turns,
        }
        return sum(counts[part] for part in self.parts)

    def many(self) -> LoadPlan:
        """Return the loads that more than one node can share."""
        plan = self.throughput()
        return attrs.evolve(plan, loads=tuple(load for load in plan.loads if load != Closed(1)))

    def throughput(self) -> LoadPlan:
        """Return the loads of one node or of several."""
        return LoadPlan(
            loads=tuple(map(Closed, self.streams)),
            workload=Workload(output_tokens=self.output_tokens),
            rounds=self.rounds,
            repeats=self.repeats,
            seed=self.seed,
        )


@attrs.frozen(kw_only=True)
class FaultFigures:
    """Milliseconds from a fault on, over all rounds: each value is the median of a round."""

    noticed_ms: Spread
    placed_ms: Spread
    next_token_ms: Spread
    prefill_ms: Spread


@attrs.frozen(kw_only=True)
class Affinity:
    """The share of prompt tokens that a prefix cache had, with turns placed by a head and at random, and the ratio."""

    by_head: Spread
    at_random: Spread
    ratio: Spread


@attrs.frozen(kw_only=True)
class FleetReport:
    """What was measured; None for a part that was not.

    `head`: one node behind a head, and the same node alone. `cores`: two nodes on a core each, and one node on one core.
    """

    head: Sequence[FleetComparison] | None = None
    cores: Sequence[FleetComparison] | None = None
    kill: FaultFigures | None = None
    hang: FaultFigures | None = None
    affinity: Affinity | None = None


async def measure_fleet(plan: FleetPlan, done: Callable[[], None]) -> FleetReport:
    """Measure every part of `plan`; `done` is called after each request, round and turn."""
    measured: dict[str, Any] = {part: await _MEASURES[part](plan, done) for part in plan.parts}
    return FleetReport(**measured)


async def _measure_head(plan: FleetPlan, done: Callable[[], None]) -> list[FleetComparison]:
    async with nodes_and_head(plan.model, [""], 0) as ([node], head):
        return await compare_fleet(plan.throughput(), plan.served, head=head, nodes=[node], alone=node, done=done)


async def _measure_cores(plan: FleetPlan, done: Callable[[], None]) -> list[FleetComparison]:
    async with AsyncExitStack() as stack:
        nodes, head = await stack.enter_async_context(nodes_and_head(plan.model, ["0", "1"], 1))
        alone = await stack.enter_async_context(run_node(plan.model, "0", 1))
        return await compare_fleet(plan.many(), plan.served, head=head, nodes=nodes, alone=alone, done=done)


async def _measure_faults(plan: FleetPlan, number: signal.Signals, done: Callable[[], None]) -> FaultFigures:
    faults = []
    for _ in range(plan.repeats):
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(run_node(plan.model, "", 1)) for _ in range(NODES)]
            faults.append(await measure_fault(plan.served, nodes, number, FAULT_STREAMS))
        done()
    return FaultFigures(
        noticed_ms=spread_of([fault.noticed_ms for fault in faults]),
        placed_ms=spread_of([_median(fault.placed_ms) for fault in faults]),
        next_token_ms=spread_of([_median(fault.next_token_ms) for fault in faults]),
        prefill_ms=spread_of([_median(fault.prefill_ms) for fault in faults]),
    )


def _median(values: Sequence[float]) -> float:
    return spread_of(values).median


async def _measure_kill(plan: FleetPlan, done: Callable[[], None]) -> FaultFigures:
    return await _measure_faults(plan, signal.SIGKILL, done)


async def _measure_hang(plan: FleetPlan, done: Callable[[], None]) -> FaultFigures:
    return await _measure_faults(plan, signal.SIGSTOP, done)


async def _measure_affinity(plan: FleetPlan, done: Callable[[], None]) -> Affinity:
    pairs = [await _affinity_pair(plan, plan.seed + 1000 * repeat, done) for repeat in range(plan.repeats)]
    return Affinity(
        by_head=spread_of([placed for placed, _ in pairs]),
        at_random=spread_of([strewn for _, strewn in pairs]),
        ratio=ratio_of(pairs),
    )


async def _affinity_pair(plan: FleetPlan, seed: int, done: Callable[[], None]) -> tuple[float, float]:
    """Return the rates of the same conversations: by a head over some nodes, and at random over the same number of others."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(run_node(plan.model, "", 1)) for _ in range(2 * NODES)]
        head = (await stack.enter_async_context(run_head(plan.model, nodes[:NODES]))).target("head", plan.served)
        others, source = [node.target("random", plan.served) for node in nodes[NODES:]], random.Random(seed)
        placed = await measure_hits(Talks(), seed, lambda: head, done)
        strewn = await measure_hits(Talks(), seed, lambda: source.choice(others), done)
    return placed.rate, strewn.rate


_MEASURES = {
    "head": _measure_head,
    "cores": _measure_cores,
    "kill": _measure_kill,
    "hang": _measure_hang,
    "affinity": _measure_affinity,
}
