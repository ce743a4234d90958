"""The specs name tests and symbols that are there, and every numbered rule has a test."""

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.kit.source_tree import CHECKOUT, defines, test_names
from tlserve.telemetry.catalogue import METRICS

SPECS = CHECKOUT / "specs"
TRACEABILITY = SPECS / "traceability.md"

RULE = re.compile(r"^[\s*\-|`]*(?P<number>[A-Z][A-Z0-9]*-[0-9]+)\b")
TEST = re.compile(r"(?P<path>tests/[\w/]+\.py)::(?P<name>\w+(?:::\w+)?)")
SYMBOL = re.compile(r"\b(?P<module>tlserve(?:\.\w+)*):(?P<symbol>[A-Za-z_]\w*(?:\.\w+)*)")
FILE = re.compile(r"`(?P<path>(?:tests|specs|docs|\.ci)/[\w./-]+\.\w+)`")
LATER_STEPS = ("The complete single node", "Speak every dialect", "Exact and fast", "The fleet")
EXCUSE = re.compile(rf"later: (?:{'|'.join(LATER_STEPS)})|left out: \w.*")
NO_TEST = "\N{EM DASH}"


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
    return [match[0] for match in SYMBOL.finditer(text) if not resolves(match["module"], match["symbol"])]


@functools.cache
def resolves(module: str, symbol: str) -> bool:
    """Import the module and look the symbol up; what only objects have (an attribute set in `__init__`) is read."""
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    tree = tree_of(module)
    return _has(found, symbol) or (tree is not None and defines(tree, symbol))


def _has(owner: object, symbol: str) -> bool:
    first, _, rest = symbol.partition(".")
    return hasattr(owner, first) and (not rest or _has(getattr(owner, first), rest))


def missing_files(text: str) -> list[str]:
    return [match["path"] for match in FILE.finditer(text) if not (CHECKOUT / match["path"]).is_file()]


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
    """Return the rows of a traceability table that have an empty cell, or no symbol with a test and no reason why not."""
    return [line for line, cells in table_rows(text) if len(cells) != 4 or not all(cells) or not _is_traced(*cells)]


def _is_traced(_item: str, ours: str, test: str, _note: str) -> bool:
    if EXCUSE.fullmatch(ours):
        return test == NO_TEST or bool(TEST.search(test))
    return bool(SYMBOL.search(ours) and TEST.search(test))


def spec_files() -> list[Path]:
    return sorted(SPECS.glob("*.md"))


@pytest.mark.parametrize("path", spec_files(), ids=lambda path: path.name)
def test_every_test_that_a_spec_names_exists(path: Path) -> None:
    assert missing_tests(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", spec_files(), ids=lambda path: path.name)
def test_every_symbol_that_a_spec_names_exists(path: Path) -> None:
    assert missing_symbols(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", spec_files(), ids=lambda path: path.name)
def test_every_file_that_a_spec_names_exists(path: Path) -> None:
    assert missing_files(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", spec_files(), ids=lambda path: path.name)
def test_every_numbered_rule_has_a_test(path: Path) -> None:
    assert [rule.number for rule in rules(path.read_text(encoding="utf-8")) if not TEST.search(rule.text)] == []


def test_no_number_of_a_rule_is_given_twice() -> None:
    numbers = [rule.number for path in spec_files() for rule in rules(path.read_text(encoding="utf-8"))]
    assert [number for number in sorted(set(numbers)) if numbers.count(number) > 1] == []


def test_every_row_of_the_traceability_table_has_a_symbol_and_a_test_or_a_reason() -> None:
    assert untraced(TRACEABILITY.read_text(encoding="utf-8")) == []


def test_the_traceability_table_names_every_metric_of_the_reference_and_every_mutant_and_no_row_twice() -> None:
    text = TRACEABILITY.read_text(encoding="utf-8")
    metrics = [metric.name for metric in METRICS[:7]]
    patches = [f"`tests/mutants/{path.name}`" for path in CHECKOUT.glob("tests/mutants/*.patch")]
    assert [name for name in metrics + patches if name not in text] == []
    rows = [cells[0] for _, cells in table_rows(text)]
    assert len(rows) == len(set(rows)), "a row stands twice"


def test_the_nineteen_tests_have_the_names_of_the_reference() -> None:
    rows = TRACEABILITY.read_text(encoding="utf-8").partition("## 4. What the tests check")[2].partition("\n## ")[0]
    named = {cells[0].strip("`"): cells[2] for _, cells in table_rows(rows) if re.fullmatch(r"`[a-z_0-9]+`", cells[0])}
    assert len(named) == 19
    assert [name for name, test in named.items() if f"::test_{name}`" not in test] == []


def test_file_names_of_tests_are_unique() -> None:
    names = [path.name for path in (CHECKOUT / "tests").rglob("test_*.py")]
    assert [name for name in sorted(set(names)) if names.count(name) > 1] == []


def test_the_readers_of_specs_see_what_is_missing() -> None:
    here = "tests/house/test_specs.py"
    text = f"- A-1 Good. — {here}::test_file_names_of_tests_are_unique\n- A-2 None.\n  more\n# Head\nA-3 Bad — {here}::test_no\n"
    assert [rule.number for rule in rules(text)] == ["A-1", "A-2", "A-3"]
    assert [rule.number for rule in rules(text) if not TEST.search(rule.text)] == ["A-2"]
    assert missing_tests(text) == [f"{here}::test_no"]
    there = "`tlserve.errors:Refusal`, tlserve.engine.engine:Engine.context_tokens, tlserve.generation:TokenEvent.index"
    assert missing_symbols(there) == []
    absent = ["tlserve.errors:Nothing", "tlserve.nowhere:X", "tlserve.generation:TokenEvent.no"]
    assert missing_symbols(", ".join(absent)) == absent
    assert missing_files(f"`{here}` and `tests/mutants/s99_none.patch`") == ["tests/mutants/s99_none.patch"]


def test_a_row_without_symbol_test_or_reason_is_seen() -> None:
    symbol, test = "`tlserve.errors:Refusal`", "tests/house/test_specs.py::test_file_names_of_tests_are_unique"
    good = [
        f"| a \\| b | {symbol} | {test} | x |",
        f"| c | later: The fleet | {NO_TEST} | x |",
        f"| c | left out: no use | {test} | x |",
    ]
    bad = [
        f"| d | {symbol} | {NO_TEST} | x |",
        f"| e | {symbol} | {test} | |",
        f"| f | later: some day | {NO_TEST} | x |",
        f"| g | left out: | {NO_TEST} | x |",
        "| h | later: The fleet | | x |",
        f"| i | {symbol} | {test} |",
    ]
    head = ["| reference item | ours | test | note |", "|---|---|---|---|"]
    assert untraced("\n".join([*head, *good, *bad])) == bad
