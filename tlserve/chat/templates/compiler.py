"""Compiles a chat template to Python code that counts what it does.

Owns the code for each construct of a template. A block pays for its constant part when it begins, and operations whose time
depends on their values are replaced by those of `operations`. Texts that are written one after another are not joined first.

Knows nothing of limits and their figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jinja2 import nodes
from jinja2.compiler import Frame

from tlserve.chat.templates.operations import MAPPING_METHODS, TEXT_METHODS
from tlserve.chat.templates.origin_jinja import OriginCodeGenerator

_OPERATIONS = (
    *("member", "item", "looped", "filtered", "sliced", "compared", "contains", "measured"),
    *("added", "added_parts", "joined", "joined_parts", "text", "plus", "minus"),
)
_NAMES_OF_MAPPINGS = frozenset(dir(dict))
_SHORT_CHARS = 1024
_EXPRESSIONS_PER_STEP = 4


class CountingCodeGenerator(OriginCodeGenerator):
    """Compiles templates to code that counts; every method writes the code of one construct."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._around: dict[int, str] = {}

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        """Write the code of `node`, as an argument of the operation that its parent has asked for."""
        operation = self._around.pop(id(node), None)
        if operation is None:
            return super().visit(node, *args, **kwargs)
        self.write(f"{operation}(")
        super().visit(node, *args, **kwargs)
        self.write(")")
        return None

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802
        """Give the module short names for the operations."""
        super().visit_Template(node, frame)
        for name in _OPERATIONS:
            self.writeline(f"op_{name} = environment.{name}")
        for name in TEXT_METHODS:
            self.writeline(f"text_{name} = environment.text_methods[{name!r}][0]")
        self.writeline("texts = environment.texts")

    def write_commons(self) -> None:
        """Begin a function of the module, which all functions inside share."""
        super().write_commons()
        self.writeline("spend = environment.budget().spend")

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        """Begin every block with its steps."""
        body = list(nodes)
        self.writeline(f"spend({1 + sum(map(_expressions, body)) // _EXPRESSIONS_PER_STEP})")
        super().blockvisit(body, frame)

    # --- statements

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        """Charge for the rounds of a loop, or for its condition."""
        self._around[id(node.iter)] = "op_filtered" if node.test else "op_looped"
        super().visit_For(node, frame)

    def visit_Output(self, node: nodes.Output, frame: Frame) -> None:  # noqa: N802
        """Write each text on its own."""
        if frame.buffer is not None:
            self.writeline(f"{frame.buffer}.extend((", node)
            for child in node.nodes:
                self._write_part(child, frame, "*")
                self.write(", ")
            self.write("))")
            return
        for child in node.nodes:
            is_many = bool(_chain(child))
            self.writeline("yield from " if is_many else "yield ", child)
            self._write_part(child, frame, "")

    def _write_part(self, child: nodes.Expr, frame: Frame, many: str) -> None:
        """Write the code of one text, or of a tuple of texts after `many`."""
        if isinstance(child, nodes.TemplateData):
            self.write(self._code_of(child.data))
        elif parts := _chain(child):
            self.write(f"{many}op_{'added' if isinstance(child, nodes.Add) else 'joined'}_parts(")
            self._write_list(parts, frame)
        else:
            self.write("op_text(")
            self.visit(child, frame)
            self.write(")")

    def _write_list(self, values: Sequence[nodes.Expr], frame: Frame) -> None:
        for value in values:
            self.visit(value, frame)
            self.write(", ")
        self.write(")")

    # --- expressions

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:  # noqa: N802
        """Look up a member by a name that no method of a mapping has."""
        if node.attr in _NAMES_OF_MAPPINGS or node.attr.startswith("_"):
            super().visit_Getattr(node, frame)
            return
        self.write("op_member(")
        self.visit(node.node, frame)
        self.write(f", {node.attr!r})")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        """Look up an item, or charge for a slice."""
        if isinstance(node.arg, nodes.Slice):
            self.write("op_sliced(")
            super().visit_Getitem(node, frame)
            self.write(")")
            return
        self.write("op_item(")
        self.visit(node.node, frame)
        self.write(", ")
        if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            self.write(repr(node.arg.value))
        else:
            self.visit(node.arg, frame)
        self.write(")")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        """Charge for the operands of a comparison, unless one of them is a short constant, and for a search."""
        first, operand = node.expr, node.ops[0]
        is_one = len(node.ops) == 1
        if is_one and operand.op in ("in", "notin"):
            self._write_search(first, operand, frame)
            return
        if not (is_one and any(map(_is_short, (first, operand.expr)))):
            self._around[id(first)] = "op_compared"
            self._around.update({id(operand.expr): "op_compared" for operand in node.ops})
        super().visit_Compare(node, frame)

    def _write_search(self, wanted: nodes.Expr, operand: nodes.Operand, frame: Frame) -> None:
        values = operand.expr
        self.write("(not " if operand.op == "notin" else "(")
        is_short = isinstance(values, nodes.List | nodes.Tuple) and all(map(_is_short, values.items))
        self.write("(op_compared(" if is_short else "op_contains(")
        self.visit(wanted, frame)
        self.write(") in " if is_short else ", ")
        self.visit(values, frame)
        self.write("))")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        """Add texts at once, and other values two at a time."""
        parts = _chain(node)
        self.write("op_added(" if parts else "op_plus(")
        self._write_list(parts or (node.left, node.right), frame)

    def visit_Sub(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        """Subtract."""
        self.write("op_minus(")
        self._write_list((node.left, node.right), frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        """Join texts."""
        self.write("op_joined(")
        self._write_list(node.nodes, frame)

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: N802
        """Call a method of a text or a mapping directly, if the arguments have no names."""
        callee = node.node
        is_plain = not (forward_caller or node.kwargs or node.dyn_args or node.dyn_kwargs)
        if not isinstance(callee, nodes.Getattr) or not is_plain:
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        method, most = TEXT_METHODS.get(callee.attr, (None, 0))
        if method is not None and (1 if most > 1 or callee.attr.endswith("with") else 0) <= len(node.args) <= most:
            self._write_method(node, callee, frame, f"text_{callee.attr}", "in texts")
        elif callee.attr in MAPPING_METHODS and not node.args:
            self._write_method(node, callee, frame, f"dict.{callee.attr}", "is dict")
        else:
            super().visit_Call(node, frame, forward_caller=forward_caller)

    def _write_method(self, node: nodes.Call, callee: nodes.Getattr, frame: Frame, function: str, kind: str) -> None:
        owner = self.temporary_identifier()
        self.write(f"({function}({owner}, ")
        self._write_list(node.args, frame)
        self.write(f" if type({owner} := ")
        self.visit(callee.node, frame)
        self.write(f") {kind} else environment.call(context, environment.getattr({owner}, {callee.attr!r}), ")
        self._write_list(node.args, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        """Weigh a list, unless it is constant."""
        self._write_weighed(super().visit_List, node, frame, node.items)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        """Weigh a tuple, unless it is constant or the target of an assignment."""
        self._write_weighed(super().visit_Tuple, node, frame, node.items if node.ctx == "load" else ())

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        """Weigh a mapping, unless it is constant."""
        members = [value for pair in node.items for value in (pair.key, pair.value)]
        self._write_weighed(super().visit_Dict, node, frame, members)

    def _write_weighed(
        self, write: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame, members: Sequence[nodes.Node]
    ) -> None:
        is_constant = all(map(_is_short, members))
        self.write("" if is_constant else "op_measured(")
        write(node, frame)
        self.write("" if is_constant else ")")


def _chain(node: nodes.Node) -> tuple[nodes.Expr, ...]:
    """Return the values that `node` adds or joins, if it makes a text of them."""
    if isinstance(node, nodes.Concat):
        return tuple(node.nodes)
    if not isinstance(node, nodes.Add):
        return ()
    values: list[nodes.Expr] = []
    while isinstance(node, nodes.Add):
        values.append(node.right)
        node = node.left
    values.append(node)
    is_text = any(isinstance(value, nodes.Const) and isinstance(value.value, str) for value in values)
    return tuple(reversed(values)) if is_text else ()


def _is_short(node: nodes.Node) -> bool:
    """Return whether a value is a constant with which any other is quickly compared."""
    if not isinstance(node, nodes.Const):
        return False
    return (
        len(node.value) <= _SHORT_CHARS if isinstance(node.value, str) else isinstance(node.value, int | float | None)
    )


def _expressions(node: nodes.Node) -> int:
    """Return the number of expressions in a statement, without those of the blocks inside."""
    return sum(1 + _expressions(child) for child in _evaluated(node))


def _evaluated(node: nodes.Node) -> Iterator[nodes.Node]:
    for child in node.iter_child_nodes():
        if isinstance(child, nodes.Expr | nodes.Helper):
            yield child
    if isinstance(node, nodes.If):
        yield from node.elif_
