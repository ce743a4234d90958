"""A bench as one JSON document, for other programs and for later.

Owns the fields of the document and its version: `docs/how-to/measure.md` explains every field. Within a version fields are only
added. Does not measure.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from typing import Any

import attrs

from tlserve import __version__
from tlserve.bench.comparison import MEASURES, LoadRun, Ratio, Spread, loads_of, select, spread_of_runs
from tlserve.bench.run import LoadPlan
from tlserve.bench.target import TargetServer

SCHEMA = "tlserve.bench.load/1"
"""The number is raised when a field is removed or changes its meaning."""


def load_report(
    plan: LoadPlan, targets: Sequence[TargetServer], runs: Sequence[LoadRun], ratios: Sequence[Ratio]
) -> str:
    """Return the document of `tlserve bench`."""
    return document(
        SCHEMA,
        plan=_load_plan(plan),
        targets=[{"name": target.name, "url": target.url, "model": target.model} for target in targets],
        runs=[_run(run) for run in runs],
        summary=[_summary(runs, target, load) for load in loads_of(runs) for target in targets],
        ratios=[{**ratio.load.describe(), "measure": ratio.measure, **_spread(ratio.spread)} for ratio in ratios],
    )


def document(schema: str, **fields: Any) -> str:
    """Return a JSON document that names its schema, the version of tlserve and the machine."""
    return json.dumps({"schema": schema, "tlserve": __version__, "machine": _machine(), **fields})


def _machine() -> dict[str, Any]:
    return {"cpus": os.cpu_count(), "architecture": platform.machine(), "python": platform.python_version()}


def _load_plan(plan: LoadPlan) -> dict[str, Any]:
    fields = attrs.asdict(plan, filter=attrs.filters.exclude("loads", "workload"))
    return {"loads": [load.describe() for load in plan.loads], **attrs.asdict(plan.workload), **fields}


def _run(run: LoadRun) -> dict[str, Any]:
    return {"target": run.target, **run.load.describe(), "repeat": run.repeat, **attrs.asdict(run.figures)}


def _summary(runs: Sequence[LoadRun], target: TargetServer, load: Any) -> dict[str, Any]:
    chosen = select(runs, target.name, load)
    spreads = {name: spread_of_runs(chosen, measure) for name, measure in MEASURES.items()}
    return {
        "target": target.name,
        **load.describe(),
        **{name: None if spread is None else _spread(spread) for name, spread in spreads.items()},
    }


def _spread(spread: Spread) -> dict[str, float]:
    return attrs.asdict(spread)
