"""Every numbered rule of specs/ has a test that points to it, and every test points to rules that exist.

A rule is one line, `- ENG-4 The first event of a request is ...`; a test points to it by `@pytest.mark.spec("ENG-4")`.
"""

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.source_tree import CHECKOUT, Function, defines

SPECS = CHECKOUT / "specs"
LONGEST_LINE = 130

RULE = re.compile(r"^[\s*\-|`]*(?P<number>[A-Z][A-Z0-9]*-[0-9]+)\b")
SYMBOL = re.compile(r"\b(?P<module>tlserve(?:\.\w+)*):(?P<symbol>[A-Za-z_]\w*(?:\.\w+)*)")
FILE = re.compile(r"`(?P<path>(?:tests|specs|docs|\.ci)/[\w./-]+\.\w+)`")


def spec_files() -> list[Path]:
    return sorted(SPECS.glob("*.md"))


def rules(text: str) -> list[str]:
    return [match["number"] for line in text.splitlines() if (match := RULE.match(line))]


@functools.cache
def all_rules() -> list[str]:
    return [number for path in spec_files() for number in rules(path.read_text(encoding="utf-8"))]


def marked(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (test, the rules that it points to) of every test that has the marker."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            numbers = tuple(number for decorator in node.decorator_list for number in _rules_of(decorator))
            if numbers:
                yield node.name, numbers


def _rules_of(decorator: ast.expr) -> Iterator[str]:
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.spec":
        yield from (ast.literal_eval(argument) for argument in decorator.args)


@functools.cache
def all_marked() -> dict[str, tuple[str, ...]]:
    """Return the rules of every marked test, by "path::name"."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted((CHECKOUT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found |= {f"{path.relative_to(CHECKOUT)}::{name}": numbers for name, numbers in marked(tree)}
    return found


def missing_symbols(text: str) -> list[str]:
    return [match[0] for match in SYMBOL.finditer(text) if not resolves(match["module"], match["symbol"])]


@functools.cache
def resolves(module: str, symbol: str) -> bool:
    """Import the module and look the symbol up; an attribute set in `__init__` is found in the source."""
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    tree = tree_of(module)
    return _has(found, symbol) or (tree is not None and defines(tree, symbol))


@functools.cache
def tree_of(module: str) -> ast.Module | None:
    base = CHECKOUT.joinpath(*module.split("."))
    paths = [path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()]
    return ast.parse(paths[0].read_text(encoding="utf-8")) if paths else None


def _has(owner: object, symbol: str) -> bool:
    first, _, rest = symbol.partition(".")
    return hasattr(owner, first) and (not rest or _has(getattr(owner, first), rest))


def missing_files(text: str) -> list[str]:
    return [match["path"] for match in FILE.finditer(text) if not (CHECKOUT / match["path"]).is_file()]


def test_every_rule_has_a_test() -> None:
    tested = {number for numbers in all_marked().values() for number in numbers}
    assert [number for number in all_rules() if number not in tested] == []


def test_every_item_of_a_list_is_a_rule() -> None:
    items = [
        line for path in spec_files() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("- ")
    ]
    assert [line for line in items if not rules(line)] == []


def test_every_test_points_to_rules_that_exist() -> None:
    known = set(all_rules())
    unknown = {test: [number for number in numbers if number not in known] for test, numbers in all_marked().items()}
    assert {test: numbers for test, numbers in unknown.items() if numbers} == {}


def test_no_rule_number_is_given_twice() -> None:
    numbers = all_rules()
    assert [number for number in sorted(set(numbers)) if numbers.count(number) > 1] == []


@pytest.mark.parametrize("path", spec_files(), ids=lambda path: path.name)
def test_no_line_of_a_spec_is_longer_than_130_characters(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [f"{number}: {len(line)}" for number, line in enumerate(lines, 1) if len(line) > LONGEST_LINE] == []


@pytest.mark.parametrize("path", spec_files(), ids=lambda path: path.name)
def test_every_symbol_that_a_spec_names_exists(path: Path) -> None:
    assert missing_symbols(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", spec_files(), ids=lambda path: path.name)
def test_every_file_that_a_spec_names_exists(path: Path) -> None:
    assert missing_files(path.read_text(encoding="utf-8")) == []


def test_the_reader_of_rules_finds_them_in_lists_and_tables() -> None:
    assert rules("- A-1 Good.\n- B2-12 Also.\nThe rule A-3.\n| `C-4` | in a table |\n") == ["A-1", "B2-12", "C-4"]


def test_the_reader_of_markers_finds_every_number() -> None:
    source = (
        'import pytest\n@pytest.mark.spec("A-1", "B-2")\ndef test_a() -> None: ...\n'
        'class TestB:\n    @pytest.mark.spec("C-3")\n    @pytest.mark.slow\n    async def test_c(self) -> None: ...\n'
        "def test_d() -> None: ...\n"
    )
    assert dict(marked(ast.parse(source))) == {"test_a": ("A-1", "B-2"), "test_c": ("C-3",)}


def test_missing_symbols_and_files_are_found() -> None:
    assert missing_symbols("`tlserve.errors:Refusal`, tlserve.engine.engine:Engine.context_tokens") == []
    absent = ["tlserve.errors:Nothing", "tlserve.nowhere:X", "tlserve.generation:TokenEvent.no"]
    assert missing_symbols(", ".join(absent)) == absent
    assert missing_files("`tests/house/test_specs.py` and `tests/mutants/s99_none.patch`") == [
        "tests/mutants/s99_none.patch"
    ]
