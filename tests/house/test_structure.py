"""Folders and classes stay small, names are unique, no import goes in a circle, and each program imports only what it needs."""

import ast
from collections import Counter
from collections.abc import Iterator

from tests.kit.source_tree import Module, graph, modules

MODULES_IN_A_FOLDER = 14
LINES_IN_A_CLASS = 220

# Top-level modules of the package; everything else is in a folder.
TOP_LEVEL = {"__init__.py", "__main__.py", "errors.py", "generation.py", "sampling_params.py"}


def classes(module: Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))


def lines_of(node: ast.ClassDef) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def reachable(start: str, imported: dict[str, set[str]]) -> set[str]:
    """Return the modules that importing `start` can load, the packages around them included."""
    found, waiting = set[str](), [start]
    while waiting:
        name = waiting.pop()
        if name in imported and name not in found:
            found.add(name)
            waiting += [*imported[name], name.rpartition(".")[0]]
    return found


def cycles(imported: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other in a circle (Tarjan's strongly connected components)."""
    index, low, stack, found = dict[str, int](), dict[str, int](), list[str](), list[list[str]]()

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(imported[name]):
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(imported):
        if name not in index:
            visit(name)
    return found


def test_the_top_level_has_five_modules() -> None:
    assert {module.path.name for module in modules() if len(module.path.parts) == 2} == TOP_LEVEL


def test_a_folder_has_at_most_14_modules() -> None:
    counts = Counter(str(module.path.parent) for module in modules() if module.path.name != "__init__.py")
    assert {folder: count for folder, count in counts.items() if count > MODULES_IN_A_FOLDER} == {}


def test_a_class_has_at_most_220_lines() -> None:
    found = {f"{module.path}:{node.name}": lines_of(node) for module in modules() for node in classes(module)}
    assert {name: lines for name, lines in found.items() if lines > LINES_IN_A_CLASS} == {}


def test_class_names_are_unique() -> None:
    counts = Counter(node.name for module in modules() for node in classes(module))
    assert {name for name, count in counts.items() if count > 1} == set()


def test_imports_form_no_cycle() -> None:
    assert cycles(graph(modules())) == []


def test_the_product_does_not_import_its_test_kit() -> None:
    imported = graph(modules())
    assert [name for name in imported if any(other.startswith("tlserve.testing") for other in imported[name])] == []


def test_a_node_without_http_imports_no_http_and_no_endpoints() -> None:
    loaded = reachable("tlserve.programs.node_in_thread", graph(modules()))
    assert [name for name in sorted(loaded) if name.split(".")[1:2] in (["http"], ["endpoints"], ["openai"])] == []


def test_a_cycle_is_detected() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == [["b", "c"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_imports_are_followed_through_modules_and_packages() -> None:
    imported = {"p": {"p.z"}, "p.a": {"q.b"}, "p.z": set(), "q.b": set(), "q.c": set()}
    assert reachable("p.a", imported) == {"p.a", "p", "p.z", "q.b"}
