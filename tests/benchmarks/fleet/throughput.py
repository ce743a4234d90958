"""What a head costs: the same load on a node alone and through a head before it, in turn; and what a second node brings.

Owns the pairs and what they are divided by. Refuses to start anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from tests.benchmarks.fleet.setup import Member
from tlserve.bench.comparison import Run, Spread, ratio_of, select, spread_of
from tlserve.bench.load import Closed
from tlserve.bench.run import Plan, run_bench

HEAD, ALONE = "head", "alone"


@attrs.frozen(kw_only=True)
class Beside:
    """A fleet beside one node under a closed loop of `streams`.

    `ratio`: its output tokens per second over the node's. `fleet_tokens_per_s`, `node_tokens_per_s`: the medians.
    `head_us`: processor time of the head per output token. `fleet_cpu_ms`, `node_cpu_ms`: of the nodes, and of the node
    alone.
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


async def measure_beside(
    plan: Plan, model: str, *, head: Member, nodes: Sequence[Member], alone: Member, done: Callable[[], None]
) -> list[Beside]:
    """Ask `head`, whose nodes are `nodes`, and `alone` in turn, `plan.repeats` times at each load of `plan`."""
    rows = []
    for number, load in enumerate(plan.loads):
        assert isinstance(load, Closed)
        costs, runs = _Costs(), list[Run]()
        for repeat in range(plan.repeats):
            once = attrs.evolve(plan, loads=(load,), repeats=1, seed=plan.seed + 1000 * number + 2 * repeat)
            runs += await _measure_fleet(once, model, head, nodes, costs, done)
            # other prompts: the same node may have read the fleet's, and would find them in its cache
            runs += await _measure_node(attrs.evolve(once, seed=once.seed + 1), model, alone, costs, done)
        rows.append(_row(load, runs, costs))
    return rows


async def _measure_fleet(
    plan: Plan, model: str, head: Member, nodes: Sequence[Member], costs: _Costs, done: Callable[[], None]
) -> list[Run]:
    head_before, nodes_before = head.cpu_s(), _sum_cpu_s(nodes)
    (run,) = await run_bench(plan, [head.target(HEAD, model)], done)
    costs.head.append((head.cpu_s() - head_before) / _tokens(plan))
    costs.fleet.append((_sum_cpu_s(nodes) - nodes_before) / _tokens(plan))
    return [run]


async def _measure_node(plan: Plan, model: str, node: Member, costs: _Costs, done: Callable[[], None]) -> list[Run]:
    before = node.cpu_s()
    (run,) = await run_bench(plan, [node.target(ALONE, model)], done)
    costs.node.append((node.cpu_s() - before) / _tokens(plan))
    return [run]


def _sum_cpu_s(members: Sequence[Member]) -> float:
    return sum(member.cpu_s() for member in members)


def _tokens(plan: Plan) -> int:
    """Return the output tokens of one run, its warm-up included."""
    return plan.workload.output_tokens * (plan.count(plan.loads[0]) + plan.warm_up)


def _row(load: Closed, runs: Sequence[Run], costs: _Costs) -> Beside:
    rates = {name: [run.figures.output_tokens_per_s for run in select(runs, name, load)] for name in (HEAD, ALONE)}
    return Beside(
        streams=load.streams,
        ratio=ratio_of(list(zip(rates[HEAD], rates[ALONE], strict=True))),
        fleet_tokens_per_s=spread_of(rates[HEAD]).median,
        node_tokens_per_s=spread_of(rates[ALONE]).median,
        head_us=spread_of([1e6 * cost for cost in costs.head]),
        fleet_cpu_ms=spread_of([1e3 * cost for cost in costs.fleet]),
        node_cpu_ms=spread_of([1e3 * cost for cost in costs.node]),
    )
