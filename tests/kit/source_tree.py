"""The sources as syntax trees, for the house tests, without importing anything.

`modules()` reads all of tlserve; the functions take a tree, so that each can be tested with a small source.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

import attrs

CHECKOUT = Path(__file__).parents[2]
GOLDEN = CHECKOUT / "tests" / "golden"


@attrs.frozen(eq=False)
class Module:
    """One file of the package: its dotted name, its text and its tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """Return the part after "tlserve": a sub-package, or a module of the top level."""
        return package_of(self.name)


def package_of(module: str) -> str:
    return (module + ".").split(".")[1]


@functools.cache
def modules() -> tuple[Module, ...]:
    return tuple(_read(path) for path in sorted((CHECKOUT / "tlserve").rglob("*.py")))


def _read(path: Path) -> Module:
    parts = path.relative_to(CHECKOUT).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    text = path.read_text(encoding="utf-8")
    return Module(name, path.relative_to(CHECKOUT), text, ast.parse(text))


def graph(sources: Iterable[Module]) -> dict[str, set[str]]:
    """Return the modules that each module imports, imports for type checkers included; modules from outside are left out."""
    named = {module.name: module for module in sources}
    return {name: _imported(module, named) - {name} for name, module in named.items()}


def _imported(module: Module, named: Container[str]) -> set[str]:
    """Return the imported modules: `from a import b` is `a.b` where that is a module, and `a` where it is not."""
    names = {name for _, name in imports(module.tree)}
    candidates = {name if name in named else name.rpartition(".")[0] for name in names}
    return {name for name in candidates if name in named}


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import anywhere in the file; `from a import b` is "a.b". None is relative."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def body_lines(function: Function) -> int:
    """Return the number of lines of the body, without signature and docstring; 0 for one that only has a docstring."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def public_definitions(tree: ast.Module) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Yield (name, node) of the public functions and classes of a module, and of the public methods of those classes."""
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                yield from _public_methods(node)


def _public_methods(owner: ast.ClassDef) -> Iterator[tuple[str, Function]]:
    for node in owner.body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield f"{owner.name}.{node.name}", node


def defines(tree: ast.Module, symbol: str) -> bool:
    """Say whether a module has `symbol`: a name of its own or imported, or below a class: "Class.attribute"."""
    scope: list[ast.stmt] = tree.body
    *owners, last = symbol.split(".")
    for owner in owners:
        found = [node for node in scope if isinstance(node, ast.ClassDef) and node.name == owner]
        if not found:
            return False
        scope = found[0].body
    return any(last in _names(node) for node in scope)


def class_members(node: ast.ClassDef) -> set[str]:
    """Return the names that the body of a class and its `__init__` bind."""
    return {name for statement in node.body for name in _names(statement)}


def _names(node: ast.stmt) -> set[str]:
    """Return the names that a statement binds; for an `__init__` also those of `self`."""
    if isinstance(node, Function | ast.ClassDef):
        return {node.name} | (_self_attributes(node) if node.name == "__init__" else set())
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.If | ast.Try):
        return {name for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt) for name in _names(child)}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {name.id for target in targets if target for name in ast.walk(target) if isinstance(name, ast.Name)}


def _self_attributes(function: ast.AST) -> set[str]:
    stored = (
        node for node in ast.walk(function) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    )
    return {node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self"}


def test_names(path: Path) -> set[str]:
    """Return the test functions of a file of tests, those in classes as "Class::test_name"."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, Function)}
    for owner in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        names |= {f"{owner.name}::{node.name}" for node in owner.body if isinstance(node, Function)}
    return {name for name in names if name.rpartition("::")[2].startswith("test_")}


test_names.__test__ = False  # type: ignore[attr-defined]
