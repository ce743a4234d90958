"""`python -m tests.benchmarks fleet`: real processes, few requests; and the tables that a person sees."""

import json
import subprocess
import sys

import pytest

from tests.benchmarks.fleet.affinity import Hits
from tests.benchmarks.fleet.command import markdown
from tests.benchmarks.fleet.run import Affinity, FaultFigures, FleetPlan, FleetReport
from tests.benchmarks.fleet.throughput import FleetComparison
from tests.kit.source_tree import CHECKOUT
from tlserve.bench.comparison import Spread

ONE = Spread(median=1.0, low=0.5, high=2.0)


@pytest.mark.real_model
def test_a_small_run_over_real_nodes_measures_the_requested_parts(smol_path):
    # the real model: answers of a tiny one may all have ended before the fault comes
    asked = ("--model", str(smol_path), "--repeat", "1", "--streams", "2", "--rounds", "1", "--output-tokens", "4")
    command = [sys.executable, "-m", "tests.benchmarks", "fleet", *asked, "--parts", "head,kill", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["schema"] == "tlserve.bench.fleet/1"
    (row,) = report["figures"]["head"]
    assert row["streams"] == 2
    assert row["ratio"]["median"] > 0
    assert row["fleet_cpu_ms"]["median"] > 0
    kill = report["figures"]["kill"]
    assert 0 < kill["noticed_ms"]["median"] <= kill["next_token_ms"]["median"]
    assert 0 < kill["placed_ms"]["median"] <= kill["next_token_ms"]["median"]
    assert report["figures"]["hang"] is report["figures"]["affinity"] is None


def test_every_part_is_a_table_and_a_part_not_measured_is_none():
    comparison = FleetComparison(
        streams=8,
        ratio=ONE,
        fleet_tokens_per_s=90,
        node_tokens_per_s=100,
        head_us=ONE,
        fleet_cpu_ms=ONE,
        node_cpu_ms=ONE,
    )
    fault = FaultFigures(noticed_ms=ONE, placed_ms=ONE, next_token_ms=ONE, prefill_ms=ONE)
    whole = FleetReport(
        head=[comparison],
        cores=[comparison],
        kill=fault,
        hang=fault,
        affinity=Affinity(by_head=ONE, at_random=ONE, ratio=ONE),
    )
    tables = markdown(whole).split("\n\n")
    assert [len(table.splitlines()) for table in tables] == [3, 3, 4, 3]
    assert "| 8 streams | 90 | 100 | 1.00 (0.50 to 2.00) |" in tables[0]
    assert markdown(FleetReport()) == ""


def test_the_rate_of_hits_is_of_all_tokens_and_the_steps_of_a_plan_are_counted():
    assert Hits(prompt_tokens=200, cached_tokens=150).rate == 0.75
    plan = FleetPlan(model="m", streams=(1, 8), rounds=2, repeats=5)
    assert plan.total() == 2 * 5 * ((2 + 1) + (16 + 1)) + 2 * 5 * (16 + 1) + 5 + 5 + 2 * 5 * 12 * 5
