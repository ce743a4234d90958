"""The quick check runs every fast test once, and fails when one of its steps does."""

import pytest

from tests.check import CHECKOUT, GROUPS, Step, all_steps, check, main


def test_every_folder_of_tests_is_in_one_step() -> None:
    checked = sorted(word for step in all_steps() for word in step.arguments if word.startswith("tests/"))
    assert checked == sorted(
        f"tests/{path.name}" for path in (CHECKOUT / "tests").iterdir() if any(path.glob("**/test_*.py"))
    )


def test_the_groups_name_folders_that_exist() -> None:
    assert [name for group in GROUPS for name in group if not (CHECKOUT / "tests" / name).is_dir()] == []


def test_a_step_that_fails_is_printed_and_returned(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = Step("good", ("timeit", "-h")), Step("bad", ("no_such_module",))
    (failed,) = check([good, bad])
    assert failed.step == bad
    assert "No module named no_such_module" in failed.output
    assert sorted(line.split()[0] for line in capsys.readouterr().out.splitlines()) == ["failed", "ok"]


def test_a_name_that_no_step_contains_is_an_error() -> None:
    assert main(["no such step"]) == 1
