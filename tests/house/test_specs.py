"""The specs name tests and symbols that are there, and every numbered rule has a test."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.kit.source_tree import CHECKOUT, defines, test_names

SPECS = CHECKOUT / "specs"
TRACEABILITY = SPECS / "traceability.md"

RULE = re.compile(r"^[\s*\-|`]*(?P<number>[A-Z][A-Z0-9]*-[0-9]+)\b")
TEST = re.compile(r"(?P<path>tests/[\w/]+\.py)::(?P<name>\w+(?:::\w+)?)")
SYMBOL = re.compile(r"\b(?P<module>tlserve(?:\.\w+)*):(?P<symbol>[A-Za-z_]\w*(?:\.\w+)*)")
EXCUSE = re.compile(r"\b(later|left out)\b", re.IGNORECASE)


@attrs.frozen
class Rule:
    """A numbered rule with the text up to the next one."""

    number: str
    text: str


def rules(text: str) -> Iterator[Rule]:
    number, lines = "", list[str]()
    for line in [*text.splitlines(), "# end"]:
        start = RULE.match(line)
        if start or line.startswith("#"):
            if number:
                yield Rule(number, "\n".join(lines))
            number, lines = (start["number"], []) if start else ("", [])
        lines.append(line)


@functools.cache
def tests_of(path: str) -> set[str]:
    return test_names(CHECKOUT / path) if (CHECKOUT / path).is_file() else set()


tests_of.__test__ = False  # type: ignore[attr-defined]


def missing_tests(text: str) -> list[str]:
    return [match[0] for match in TEST.finditer(text) if match["name"] not in tests_of(match["path"])]


@functools.cache
def tree_of(module: str) -> ast.Module | None:
    base = CHECKOUT.joinpath(*module.split("."))
    paths = [path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()]
    return ast.parse(paths[0].read_text(encoding="utf-8")) if paths else None


def missing_symbols(text: str) -> list[str]:
    found = ((match, tree_of(match["module"])) for match in SYMBOL.finditer(text))
    return [match[0] for match, tree in found if tree is None or not defines(tree, match["symbol"])]


def table_rows(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (line, cells) of every table row below its head; an escaped bar does not end a cell."""
    in_body = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        is_rule = line.startswith("|") and all(re.fullmatch(r":?-+:?", cell) for cell in cells)
        in_body = line.startswith("|") and (in_body or is_rule)
        if in_body and not is_rule:
            yield line, cells


def untraced(text: str) -> list[str]:
    """Return the rows of a traceability table that name neither a symbol with a test nor a reason why not."""
    return [
        line
        for line, cells in table_rows(text)
        if len(cells) < 4
        or not cells[0]
        or not (EXCUSE.search(" ".join(cells[1:])) or (SYMBOL.search(cells[1]) and TEST.search(cells[2])))
    ]


def spec_files() -> list[Path]:
    return sorted(SPECS.glob("*.md"))


@pytest.mark.parametrize("path", spec_files(), ids=lambda path: path.name)
def test_every_test_that_a_spec_names_exists(path: Path) -> None:
    assert missing_tests(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", spec_files(), ids=lambda path: path.name)
def test_every_symbol_that_a_spec_names_exists(path: Path) -> None:
    assert missing_symbols(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", spec_files(), ids=lambda path: path.name)
def test_every_numbered_rule_has_a_test(path: Path) -> None:
    assert [rule.number for rule in rules(path.read_text(encoding="utf-8")) if not TEST.search(rule.text)] == []


def test_no_number_of_a_rule_is_given_twice() -> None:
    numbers = [rule.number for path in spec_files() for rule in rules(path.read_text(encoding="utf-8"))]
    assert [number for number in sorted(set(numbers)) if numbers.count(number) > 1] == []


def test_every_row_of_the_traceability_table_has_a_symbol_and_a_test_or_a_reason() -> None:
    assert untraced(TRACEABILITY.read_text(encoding="utf-8") if TRACEABILITY.is_file() else "") == []


def test_file_names_of_tests_are_unique() -> None:
    names = [path.name for path in (CHECKOUT / "tests").rglob("test_*.py")]
    assert [name for name in sorted(set(names)) if names.count(name) > 1] == []


def test_the_readers_of_specs_see_what_is_missing() -> None:
    here = "tests/house/test_specs.py"
    text = f"- A-1 Good. — {here}::test_file_names_of_tests_are_unique\n- A-2 None.\n  more\n# Head\nA-3 Bad — {here}::test_no\n"
    assert [rule.number for rule in rules(text)] == ["A-1", "A-2", "A-3"]
    assert [rule.number for rule in rules(text) if not TEST.search(rule.text)] == ["A-2"]
    assert missing_tests(text) == [f"{here}::test_no"]
    assert missing_symbols("`tlserve.errors:Refusal`, tlserve.errors:Nothing, tlserve.nowhere:X") == [
        "tlserve.errors:Nothing",
        "tlserve.nowhere:X",
    ]


def test_a_row_without_symbol_test_or_reason_is_seen() -> None:
    test = "tests/house/test_specs.py::test_file_names_of_tests_are_unique"
    good = f"| a \\| b | `tlserve.errors:Refusal` | {test} | |\n| c | later | | comes with tools |\n"
    bad = "| d | `tlserve.errors:Refusal` | | |\n| e | | | |\n"
    head = "| reference item | ours | test | note |\n|---|---|---|---|\n"
    assert untraced(head + good + bad) == bad.splitlines()
