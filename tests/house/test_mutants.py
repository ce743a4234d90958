"""Every mutant still applies to the sources and names a test that exists, so that no refactoring breaks one unnoticed."""

import re
from collections import Counter
from collections.abc import Iterator

import attrs
import pytest

from tests.kit.source_tree import CHECKOUT, test_names
from tests.mutants.run import Mutant, Verdict, mutants, run_tests
from tests.simulation.mutants.run import AREAS, defect_of, simulation_mutants

HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@.*$", re.MULTILINE)
FILE = re.compile(r"^--- a/(?P<path>\S+)$", re.MULTILINE)


@attrs.frozen
class Hunk:
    """The lines that a hunk looks for, and whether they must be at the end of the file, as for `git apply`."""

    before: str
    at_end: bool


def hunks(patch: str) -> Iterator[Hunk]:
    for body in HUNK.split(patch)[1:]:
        lines = body.strip("\n").splitlines()
        before = "".join(line[1:] + "\n" for line in lines if not line.startswith("+"))
        changed = [number for number, line in enumerate(lines) if line[:1] in "+-"]
        yield Hunk(before, at_end=len(lines) - 1 - changed[-1] < changed[0])


def misfits(patch: str, source: str) -> list[str]:
    """Return the hunks that do not apply to `source` in exactly one place."""
    return [
        hunk.before
        for hunk in hunks(patch)
        if source.count(hunk.before) != 1 or (hunk.at_end and not source.endswith(hunk.before))
    ]


@pytest.mark.parametrize("mutant", [*mutants(), *simulation_mutants()], ids=lambda mutant: mutant.name)
def test_the_patch_of_every_mutant_applies_to_the_sources(mutant: Mutant) -> None:
    patch = mutant.path.read_text(encoding="utf-8")
    (path,) = FILE.findall(patch)
    assert misfits(patch, (CHECKOUT / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_every_mutant_names_an_existing_test_and_its_fault(mutant: Mutant) -> None:
    path, _, name = mutant.named_test.partition("::")
    assert name in test_names(CHECKOUT / path)
    head = mutant.path.read_text(encoding="utf-8").partition("\n--- ")[0]
    assert [line.partition(": ")[0] for line in head.splitlines() if line] == ["Pitfall", "Symptom", "Named test"]


def test_there_is_one_mutant_for_each_pitfall_and_some_for_exactness() -> None:
    pitfalls = [f"s{number:02}_" for number in range(1, 17)]
    assert [mutant.name[:4] for mutant in mutants()] == [*pitfalls, "x01_", "x02_", "x03_"]


def test_the_simulation_has_eight_mutants_of_each_area_or_more() -> None:
    assert all(defect_of(mutant) for mutant in simulation_mutants())
    areas = Counter(mutant.name.partition("_")[0] for mutant in simulation_mutants())
    assert set(areas) == set(AREAS)
    assert min(areas.values()) >= 8


def test_a_hunk_that_does_not_apply_is_detected() -> None:
    patch = "--- a/x.py\n+++ b/x.py\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"
    assert misfits(patch, "a\nb\nc\nd\n") == []
    assert misfits(patch, "a\nx\nc\n") == ["a\nb\nc\n"]
    assert misfits(patch, "a\nb\nc\n" * 2) == ["a\nb\nc\n"]
    at_end = "@@ -1,2 +1,2 @@\n a\n-b\n+B\n"
    assert misfits(at_end, "a\nb\n") == []
    assert misfits(at_end, "a\nb\nc\n") == ["a\nb\n"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "timeout_s", "red", "words"),
    [
        ("assert 1 == 1", 30, False, "passed"),
        ("assert 1 == 2", 30, True, "assert 1 == 2"),
        ("raise ZeroDivisionError", 30, False, "otherwise than by an assertion: ZeroDivisionError"),
        ("import nothing_of_this_name", 30, False, "otherwise than by an assertion"),
        ("import threading; threading.Event().wait()", 2, True, "no end within 2 s"),
    ],
)
def test_a_run_fails_only_by_an_assertion_or_a_timeout(tmp_path, body, timeout_s, red, words) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "test_x.py").write_text(f"def test_x():\n    {body}\n", encoding="utf-8")
    verdict: Verdict = run_tests(tree, ["test_x.py"], timeout_s)
    assert verdict.red is red
    assert words in verdict.said
