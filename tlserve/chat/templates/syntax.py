"""The syntax tree of a chat template, checked when the model loads.

Owns the walk. jinja2 finds an unknown filter in a branch only when the branch runs, and accepts attributes that only a hostile
template uses. A broken or hostile template must fail before it is served.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping

from jinja2 import Environment, nodes

_NAMED_FILTERS = frozenset({"map"})
_NAMED_TESTS: Mapping[str, int] = {"select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}
_LOADERS = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


def find_refusals(tree: nodes.Template, environment: Environment) -> Iterator[str]:
    """Yield the faults of `tree`, one sentence each."""
    for kind, check in _CHECKS:
        for node in tree.find_all(kind):
            problem = check(node, environment)
            if problem:
                yield f"{problem} (line {node.lineno})"


def _loader(_node: nodes.Node, _environment: Environment) -> str:
    return "it loads another template, and there are no others"


def _autoescape(_node: nodes.Node, _environment: Environment) -> str:
    return "it sets autoescape, which is not supported"


def _filter(node: nodes.Filter, environment: Environment) -> str:
    return (
        _unknown("filter", node.name, environment.filters)
        or _unknown_argument("filter", node, 0 if node.name in _NAMED_FILTERS else None, environment.filters)
        or _unknown_argument("test", node, _NAMED_TESTS.get(node.name), environment.tests)
        or (_private(_constant(node, 0)) if node.name == "attr" else "")
    )


def _test(node: nodes.Test, environment: Environment) -> str:
    return _unknown("test", node.name, environment.tests)


def _attribute(node: nodes.Getattr, _environment: Environment) -> str:
    return _private(node.attr)


def _item(node: nodes.Getitem, _environment: Environment) -> str:
    return _private(node.arg.value) if isinstance(node.arg, nodes.Const) else ""


_CHECKS: tuple[tuple[type[nodes.Node] | tuple[type[nodes.Node], ...], Callable[..., str]], ...] = (
    (_LOADERS, _loader),
    (nodes.ScopedEvalContextModifier, _autoescape),
    (nodes.Filter, _filter),
    (nodes.Test, _test),
    (nodes.Getattr, _attribute),
    (nodes.Getitem, _item),
)


def _unknown(what: str, name: object, known: Container[object]) -> str:
    return "" if name in known else f"there is no {what} named {str(name)[:64]!r}"


def _unknown_argument(what: str, node: nodes.Filter, place: int | None, known: Container[object]) -> str:
    name = None if place is None else _constant(node, place)
    return _unknown(what, name, known) if isinstance(name, str) else ""


def _constant(node: nodes.Filter, place: int) -> object:
    argument = node.args[place] if place < len(node.args) else None
    return argument.value if isinstance(argument, nodes.Const) else None


def _private(name: object) -> str:
    return f"it accesses {name[:64]!r}" if isinstance(name, str) and name.startswith("__") else ""
