"""Every file has a docstring at its head, and every public class and function has one."""

import ast
import re

import pytest

from tests.kit.source_tree import CHECKOUT, modules, public_definitions

# A summary is a sentence: "..." may end in a full stop, or in a colon before what follows.
SUMMARY = re.compile(r"\S.*[.:!?)`\"]$")


def documented(node: ast.AsyncFunctionDef | ast.FunctionDef | ast.ClassDef | ast.Module) -> bool:
    """Say whether the docstring begins with a sentence on a line of its own."""
    lines = (ast.get_docstring(node) or "").splitlines()
    return bool(lines) and bool(SUMMARY.fullmatch(lines[0])) and (len(lines) == 1 or not lines[1].strip())


def test_every_module_has_a_head() -> None:
    assert [str(module.path) for module in modules() if not documented(module.tree)] == []


def test_everything_public_has_a_docstring() -> None:
    assert [
        f"{module.path}:{node.lineno}: {name}"
        for module in modules()
        for name, node in public_definitions(module.tree)
        if not documented(node)
    ] == []


def test_every_file_of_tests_has_a_docstring() -> None:
    paths = sorted((CHECKOUT / "tests").rglob("*.py"))
    trees = {str(path.relative_to(CHECKOUT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    assert [path for path, tree in trees.items() if not ast.get_docstring(tree)] == []


@pytest.mark.parametrize(
    ("docstring", "good"),
    [("Do it.", True), ("Do it.\n\n    More.", True), ("Do it", False), ("Do it\n    and more.", False), ("", False)],
)
def test_a_docstring_begins_with_a_sentence_on_one_line(docstring: str, good: bool) -> None:
    tree = ast.parse(f'def f():\n    """{docstring}"""\n')
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    assert documented(function) == good
