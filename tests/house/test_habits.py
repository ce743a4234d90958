"""Things that are never committed: unfinished work, tests that do not run, sleeps and mocks, a silenced checker."""

import re
from pathlib import Path

import pytest

from tests.kit.source_tree import CHECKOUT

EVERYWHERE = {
    "unfinished work": r"\b(TODO|FIXME|XXX|NotImplementedError\(\))",
    "a type error silenced without its code": r"#\s*type:\s*ignore(?!\[)",
    "a lint finding silenced without its code": r"#\s*noqa(?!:)",
    "a conflict that was not resolved": r"^(<{7}|>{7}) ",
    "a debugger": r"\b(breakpoint\(|pdb\.set_trace)",
}
IN_TESTS = {
    "a test that does not run": r"\bpytest\.(skip|xfail|importorskip)\b|\bmark\.(skip|skipif|xfail)\b",
    "a real sleep": r"\btime\.sleep\(",
    "a mock": r"\b(unittest\.mock|MagicMock|mocker)\b",
}
IN_THE_PACKAGE = {
    "a wait that is only a delay": r"\btime\.sleep\(",
}


def findings(folder: str, rules: dict[str, str]) -> list[str]:
    paths = [path for path in sorted((CHECKOUT / folder).rglob("*.py")) if path != Path(__file__)]
    return [found for path in paths for found in seen(path, path.read_text(encoding="utf-8"), rules)]


def seen(path: Path, text: str, rules: dict[str, str]) -> list[str]:
    return [
        f"{path.relative_to(CHECKOUT)}:{number}: {what}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in rules.items()
        if re.search(pattern, line)
    ]


def test_the_package_has_nothing_unfinished_or_silenced() -> None:
    assert findings("tlserve", EVERYWHERE | IN_THE_PACKAGE) == []


def test_every_test_runs_without_sleeps_and_mocks() -> None:
    assert findings("tests", EVERYWHERE | IN_TESTS) == []


@pytest.mark.parametrize(
    "line",
    [
        "# TODO later",
        "x = 1  # type: ignore",
        "import x  # noqa",
        "    time.sleep(1)",
        "@pytest.mark.skipif(True)",
        "from unittest.mock import patch",
    ],
)
def test_each_bad_habit_is_detected(line: str) -> None:
    assert len(seen(Path(__file__), line, EVERYWHERE | IN_TESTS)) == 1


@pytest.mark.parametrize(
    "line", ["x = 1  # type: ignore[attr-defined]", "import x  # noqa: F401", "await trio.sleep(1)"]
)
def test_allowed_code_is_not_detected(line: str) -> None:
    assert seen(Path(__file__), line, EVERYWHERE | IN_TESTS) == []
