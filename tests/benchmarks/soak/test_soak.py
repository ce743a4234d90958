"""A short soak, and what counts as growth."""

import json

import attrs
import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks.soak.readings import Reading, growth

QUIET = Reading(
    minute=1,
    memory_mb=100,
    children_mb=40,
    descriptors=12,
    threads=5,
    tasks=14,
    blocks_used=0,
    blocks_cached=100,
    running=0,
    waiting=0,
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"blocks_used": 3}, "blocks_used is 3 at minute 1, without any request"),
        ({"running": 1}, "running is 1 at minute 1"),
        ({"waiting": 1}, "waiting is 1 at minute 1"),
        ({"descriptors": 13}, "descriptors grew from 12 to 13"),
        ({"threads": 6}, "threads grew from 5 to 6"),
        ({"tasks": 15}, "tasks grew from 14 to 15"),
        ({"memory_mb": 117}, "memory_mb grew from 100 to 117"),
        ({"children_mb": 60}, "children_mb grew from 40 to 60"),
    ],
)
def test_what_is_left_or_has_grown_is_named(change, words):
    (found,) = growth([QUIET, QUIET, attrs.evolve(QUIET, **change)])
    assert found.startswith(words)


@pytest.mark.parametrize("change", [{"memory_mb": 115}, {"blocks_cached": 900}, {"threads": 2}])
def test_caches_and_small_changes_are_not_growth(change):
    assert growth([QUIET, QUIET, attrs.evolve(QUIET, **change)]) == []


@pytest.mark.slow
def test_a_short_soak_leaves_nothing(capsys):
    assert main(["soak", "--minutes", "0.2", "--readings", "3", "--rest-ms", "10", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "tlserve.bench.soak/1"
    assert report["verdict"] == []
    assert len(report["readings"]) == 3
    assert {visit["visit"] for visit in report["visits"]} >= {"behave", "leave", "write_garbage", "abort_upload"}
