"""A bench as one JSON document, for other programs and for later.

Owns the documents' shapes and their version: `docs/how-to/measure.md` says what every field means. Within a version fields are
only added. Refuses to measure.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from tests.benchmarks.engine.sampling_costs import SamplingCost
from tests.benchmarks.engine.steps import EnginePlan, StepFigures
from tests.benchmarks.engine.through_http import ThroughHttp
from tests.benchmarks.http.event_count import EventRate
from tests.benchmarks.http.layer import EventPlan
from tests.benchmarks.table.rows import Finding
from tests.benchmarks.table.run import TablePlan
from tlserve import __version__
from tlserve.bench.comparison import MEASURES, Ratio, Run, Spread, loads_of, select, spread_of_runs
from tlserve.bench.run import Plan
from tlserve.bench.target import Target

VERSION = 1
"""Raised when a field is taken away or means something else."""


def load_report(plan: Plan, targets: Sequence[Target], runs: Sequence[Run], ratios: Sequence[Ratio]) -> str:
    """Return the document of `tlserve bench`."""
    return _document(
        "load",
        plan=_load_plan(plan),
        targets=[{"name": target.name, "url": target.url, "model": target.model} for target in targets],
        runs=[_run(run) for run in runs],
        summary=[_summary(runs, target, load) for load in loads_of(runs) for target in targets],
        ratios=[{**ratio.load.describe(), "measure": ratio.measure, **_spread(ratio.spread)} for ratio in ratios],
    )


def _load_plan(plan: Plan) -> dict[str, Any]:
    fields = attrs.asdict(plan, filter=attrs.filters.exclude("loads", "workload"))
    return {"loads": [load.describe() for load in plan.loads], **attrs.asdict(plan.workload), **fields}


def _run(run: Run) -> dict[str, Any]:
    return {"target": run.target, **run.load.describe(), "repeat": run.repeat, **attrs.asdict(run.figures)}


def _summary(runs: Sequence[Run], target: Target, load: Any) -> dict[str, Any]:
    chosen = select(runs, target.name, load)
    spreads = {name: spread_of_runs(chosen, measure) for name, measure in MEASURES.items()}
    return {
        "target": target.name,
        **load.describe(),
        **{name: None if spread is None else _spread(spread) for name, spread in spreads.items()},
    }


def engine_report(
    plan: EnginePlan,
    kernels: str,
    steps: Sequence[StepFigures],
    sampling: Sequence[SamplingCost],
    through_http: ThroughHttp | None,
) -> str:
    """Return the document of `tlserve bench engine`."""
    return _document(
        "engine",
        plan=attrs.asdict(plan),
        kernels=kernels,
        steps=[_step(step) for step in steps],
        sampling=[attrs.asdict(cost) for cost in sampling],
        through_http=None if through_http is None else attrs.asdict(through_http),
    )


def _step(step: StepFigures) -> dict[str, Any]:
    work = {"work": "decode", "rows": step.rows} if step.rows else {"work": "prefill", "rows": 1}
    return {**work, **attrs.asdict(step, filter=attrs.filters.exclude("rows"))}


def http_report(plan: EventPlan, rates: Mapping[str, Sequence[EventRate]]) -> str:
    """Return the document of `tlserve bench http`."""
    runs = [
        {"server": name, "events_per_s": rate.events_per_s, **attrs.asdict(rate)}
        for name, found in rates.items()
        for rate in found
    ]
    return _document("http", plan=attrs.asdict(plan), runs=runs)


def table_report(
    plan: TablePlan, recorded: Mapping[str, Mapping[str, Sequence[float]]], found: Sequence[Finding]
) -> str:
    """Return the document of `tlserve bench table`."""
    values = [
        {"what": what, "who": who, "values": values} for what, by in recorded.items() for who, values in by.items()
    ]
    return _document("table", plan=attrs.asdict(plan), rows=[_row(finding) for finding in found], measured=values)


def _row(finding: Finding) -> dict[str, Any]:
    fields = attrs.asdict(finding, filter=attrs.filters.exclude("row"))
    bounds = {"load": finding.row.what, "wanted": finding.row.wanted, "aim": finding.row.aim}
    return {**bounds, **fields, "reached": finding.reached}


def _spread(spread: Spread) -> dict[str, float]:
    return attrs.asdict(spread)


def _document(kind: str, **fields: Any) -> str:
    return json.dumps(
        {"schema": f"tlserve.bench.{kind}/{VERSION}", "tlserve": __version__, "machine": _machine(), **fields}
    )


def _machine() -> dict[str, Any]:
    return {"cpus": os.cpu_count(), "architecture": platform.machine(), "python": platform.python_version()}
