"""The same load on a fleet and on one node alone, in turn: the cost of a head, and the gain of a second node.

Owns the pairs of runs and the figures per output token. Does not start servers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from tests.benchmarks.fleet.setup import FleetProcess
from tlserve.bench.comparison import LoadRun, Spread, ratio_of, select, spread_of
from tlserve.bench.load import Closed
from tlserve.bench.run import LoadPlan, run_bench

HEAD, ALONE = "head", "alone"


@attrs.frozen(kw_only=True)
class FleetComparison:
    """A fleet and one node alone under a closed loop of `streams`.

    `ratio`: output tokens per second of the fleet over those of the node. `fleet_tokens_per_s`, `node_tokens_per_s`: their
    medians. `head_us`, `fleet_cpu_ms`, `node_cpu_ms`: processor time per output token of the head, of the fleet's nodes, and
    of the node alone.
    """

    streams: int
    ratio: Spread
    fleet_tokens_per_s: float
    node_tokens_per_s: float
    head_us: Spread
    fleet_cpu_ms: Spread
    node_cpu_ms: Spread


@attrs.define(kw_only=True)
class _Costs:
    """Processor time per output token of each pair, in seconds."""

    head: list[float] = attrs.field(factory=list)
    fleet: list[float] = attrs.field(factory=list)
    node: list[float] = attrs.field(factory=list)


async def compare_fleet(
    plan: LoadPlan,
    model: str,
    *,
    head: FleetProcess,
    nodes: Sequence[FleetProcess],
    alone: FleetProcess,
    done: Callable[[], None],
) -> list[FleetComparison]:
    """Measure `head`, whose nodes are `nodes`, and `alone` in turn, `plan.repeats` times at each load of `plan`."""
    rows = []
    for number, load in enumerate(plan.loads):
        assert isinstance(load, Closed)
        costs, runs = _Costs(), list[LoadRun]()
        for repeat in range(plan.repeats):
            once = attrs.evolve(plan, loads=(load,), repeats=1, seed=plan.seed + 1000 * number + 2 * repeat)
            runs += await _measure_fleet(once, model, head, nodes, costs, done)
            # other prompts: the same node may have those of the fleet's run in its cache
            runs += await _measure_node(attrs.evolve(once, seed=once.seed + 1), model, alone, costs, done)
        rows.append(_row(load, runs, costs))
    return rows


async def _measure_fleet(
    plan: LoadPlan,
    model: str,
    head: FleetProcess,
    nodes: Sequence[FleetProcess],
    costs: _Costs,
    done: Callable[[], None],
) -> list[LoadRun]:
    head_before, nodes_before = head.cpu_s(), _sum_cpu_s(nodes)
    (run,) = await run_bench(plan, [head.target(HEAD, model)], done)
    costs.head.append((head.cpu_s() - head_before) / _tokens(plan))
    costs.fleet.append((_sum_cpu_s(nodes) - nodes_before) / _tokens(plan))
    return [run]


async def _measure_node(
    plan: LoadPlan, model: str, node: FleetProcess, costs: _Costs, done: Callable[[], None]
) -> list[LoadRun]:
    before = node.cpu_s()
    (run,) = await run_bench(plan, [node.target(ALONE, model)], done)
    costs.node.append((node.cpu_s() - before) / _tokens(plan))
    return [run]


def _sum_cpu_s(processes: Sequence[FleetProcess]) -> float:
    return sum(process.cpu_s() for process in processes)


def _tokens(plan: LoadPlan) -> int:
    """Return the output tokens of one run, its warm-up included."""
    return plan.workload.output_tokens * (plan.count(plan.loads[0]) + plan.warm_up)


def _row(load: Closed, runs: Sequence[LoadRun], costs: _Costs) -> FleetComparison:
    rates = {name: [run.figures.output_tokens_per_s for run in select(runs, name, load)] for name in (HEAD, ALONE)}
    return FleetComparison(
        streams=load.streams,
        ratio=ratio_of(list(zip(rates[HEAD], rates[ALONE], strict=True))),
        fleet_tokens_per_s=spread_of(rates[HEAD]).median,
        node_tokens_per_s=spread_of(rates[ALONE]).median,
        head_us=spread_of([1e6 * cost for cost in costs.head]),
        fleet_cpu_ms=spread_of([1e3 * cost for cost in costs.fleet]),
        node_cpu_ms=spread_of([1e3 * cost for cost in costs.node]),
    )
