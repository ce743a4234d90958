"""The jinja2 environment of chat templates: the names that transformers gives them, within limits.

Owns the names, filters and tests of a template, and the places where jinja2 is intercepted so that `limits` can count:
operators, calls, filters, tests, literals, loops, blocks, output. Knows nothing of messages, or of who wrote a text: that is
`origin_jinja`.

Source: transformers' `utils/chat_template_utils.py` for the names and settings; the jinja2 documentation, "Sandbox".
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes, pass_context
from jinja2.compiler import Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.utils import Namespace, missing

from tlserve.chat.templates import limits, origin
from tlserve.chat.templates.limits import BUDGET, TemplateLimit, measured
from tlserve.chat.templates.origin_jinja import OriginCodeGenerator, OriginEnvironment

CLOCK: ContextVar[Callable[[], datetime]] = ContextVar("template_clock")
"""The clock that `strftime_now` reads; set for each rendering."""

_REFUSED_FILTERS = ("random", "urlize", "pprint", "xmlattr", "filesizeformat")
_REFUSED_GLOBALS = ("lipsum",)
_QUICK_FILTERS = frozenset({"length", "count", "default", "d", "first"})
_SLOW_FILTERS = frozenset({"wordwrap", "title", "striptags", "wordcount", "truncate", "indent", "escape", "e"})
_COMPARING_TESTS = (
    "in",
    "eq",
    "equalto",
    "==",
    "ne",
    "!=",
    "gt",
    "greaterthan",
    ">",
    "ge",
    ">=",
    "lt",
    "lessthan",
    "<",
    "le",
    "<=",
)
MAX_INDENT = 64
_STRFTIME_WIDTH = re.compile(r"%[-_0^#]*\d")


class TemplateRaised(Exception):
    """The template called raise_exception; the message is the template's own sentence."""


class GenerationTag(Extension):
    """`{% generation %}`: marks the assistant's text for training; here only its body matters."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body in its own scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class BoundedCodeGenerator(OriginCodeGenerator):
    """Compiles templates so that they count their steps, and weigh the values that they make."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        """Begin every block with a step, and count the characters that it always writes."""
        body = list(nodes)
        self.writeline(f"environment.tick({_static_chars(body)})")
        super().blockvisit(body, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        """Weigh the value of a loop: a condition may skip every round."""
        node.iter = _measured_call(node.iter)
        super().visit_For(node, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        """Weigh the operands of comparisons, and search for `in` within limits."""
        if len(node.ops) == 1 and node.ops[0].op in ("in", "notin"):
            self.write("(not " if node.ops[0].op == "notin" else "(")
            self.write("environment.contains(")
            self.visit(node.expr, frame)
            self.write(", ")
            self.visit(node.ops[0].expr, frame)
            self.write("))")
            return
        node.expr = _weighed_operand(node.expr)
        for operand in node.ops:
            operand.expr = _weighed_operand(operand.expr)
        super().visit_Compare(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        """Join within limits."""
        self.write("environment.bounded_concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        """Weigh slices."""
        self._weigh(super().visit_Getitem, node, frame, when=isinstance(node.arg, nodes.Slice))

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        """Weigh lists."""
        self._weigh(super().visit_List, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        """Weigh tuples, but not the targets of an assignment."""
        self._weigh(super().visit_Tuple, node, frame, when=node.ctx == "load")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        """Weigh mappings."""
        self._weigh(super().visit_Dict, node, frame)

    def _weigh(self, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame, *, when: bool = True) -> None:
        self.write("environment.measured(" if when else "")
        visit(node, frame)
        self.write(")" if when else "")


def _measured_call(value: nodes.Node, name: str = "measured") -> nodes.Expr:
    line = value.lineno
    return nodes.Call(nodes.EnvironmentAttribute(name, lineno=line), [value], [], None, None, lineno=line)


def _weighed_operand(value: nodes.Expr) -> nodes.Expr:
    return value if isinstance(value, nodes.Const) else _measured_call(value, "compared")


def _static_chars(body: list[nodes.Node]) -> int:
    parts = (part for node in body if isinstance(node, nodes.Output) for part in node.nodes)
    return sum(len(part.data) for part in parts if isinstance(part, nodes.TemplateData))


class ChatEnvironment(OriginEnvironment):
    """The environment of transformers, with its work counted. It has no state: one instance serves all templates and threads."""

    code_generator_class = BoundedCodeGenerator
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})
    measured = staticmethod(measured)
    compared = staticmethod(limits.compared)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            optimized=False,
            finalize=_written,
        )
        for name in _REFUSED_FILTERS:
            del self.filters[name]
        for name in _REFUSED_GLOBALS:
            del self.globals[name]
        self.filters["from_json"] = _from_json
        self.filters.update({name: _bounded_filter(name, function) for name, function in self.filters.items()})
        self.tests.update({name: _bounded_test(self.tests[name]) for name in _COMPARING_TESTS})
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)

    def tick(self, chars: int) -> None:
        """Count one block that writes `chars` characters of the template's source."""
        budget = BUDGET.get()
        budget.spend(1 + chars // limits.CHARS_PER_WORK)
        budget.write(chars)

    def bounded_concat(self, values: tuple[Any, ...]) -> str:
        """Return `a ~ b ~ ...`, checked before the text is made."""
        limits.check_weight(sum(map(limits.weigh, values)))
        text: str = measured(origin.concat(map(str, values)), limits.COPIED_CHARS_PER_WORK)
        return text

    def contains(self, value: Any, values: Any) -> bool:
        """Return `value in values`, charged before the search."""
        limits.compared(value)
        limits.charge_search(limits.compared(values), value)
        return value in values

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator, checked before and after."""
        check = _BINOP_CHECKS.get(operator)
        if check is not None:
            check(left, right)
        chars_per_work = limits.COPIED_CHARS_PER_WORK if operator == "+" else limits.CHARS_PER_WORK
        return measured(super().call_binop(context, operator, left, right), chars_per_work)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call, within limits; the parameter names are jinja2's, so that no keyword argument clashes with them."""
        if __obj is measured or __obj is limits.compared:
            return __obj(*args)
        args = tuple(map(_counted_argument, args))
        _check_method(__obj, args, kwargs)
        for value in kwargs.values():
            measured(value)
        return measured(super().call(__context, __obj, *args, **kwargs))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `obj.attribute`. The names of a `namespace()` are the template's own: only what can be called needs a check."""
        if type(obj) is Namespace and not attribute.startswith("_"):
            value = getattr(obj, attribute, missing)
            if value is not missing and not callable(value):
                return value
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse private attributes, those that the sandbox refuses, and methods of str that no template needs."""
        if isinstance(obj, str) and attr in limits.REFUSED_STR_METHODS:
            return False
        if isinstance(obj, int) and attr in limits.REFUSED_INT_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return `str.format` within limits."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        @functools.wraps(wrapped)
        def bounded(*args: Any, **kwargs: Any) -> str:
            limits.check_format(value.__self__, [list(args), kwargs])
            return wrapped(*args, **kwargs)

        return bounded


_BINOP_CHECKS: dict[str, Callable[[Any, Any], None]] = {
    "*": limits.check_product,
    "**": limits.check_power,
    "%": limits.check_percent,
}


def _counted_argument(value: Any) -> Any:
    """Return a charged argument; a generator becomes a list, so that it can be weighed."""
    return measured(list(value) if inspect.isgenerator(value) else value)


def _check_method(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    owner = getattr(method, "__self__", None)
    limits.charge_method(owner, getattr(method, "__name__", ""), (*args, *kwargs.values()))
    growth = limits.STR_METHODS.get(method.__name__) if isinstance(owner, str) else None
    if growth is not None:
        try:
            weight = growth(owner, *args, **kwargs)
        except (TypeError, ValueError):
            return  # the call itself reports its wrong arguments
        limits.check_weight(weight)


@pass_context
def _written(_context: Context, value: Any) -> Any:
    """Charge for the text that `{{ value }}` writes. It takes the context so that jinja2 never calls it while it compiles."""
    if isinstance(value, str):
        BUDGET.get().write(len(value))
        return value
    BUDGET.get().write(limits.weigh(measured(value)))
    return value


# --- filters and tests ---------------------------------------------------------------------------------------------


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    first = 1 if hasattr(function, "jinja_pass_arg") else 0
    check = _FILTER_CHECKS.get(name)

    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        values = args[first:] if name in _QUICK_FILTERS else tuple(map(_counted_argument, args[first:]))
        if name in _SLOW_FILTERS:
            BUDGET.get().spend(limits.weigh(str(values[0])) // limits.SLOW_CHARS_PER_WORK)
        for value in (*values[1:], *kwargs.values()):
            limits.check_count(value)
            measured(value)
        if check is not None:
            check(*values, **kwargs)
        return measured(function(*args[:first], *values, **kwargs))

    return bounded


def _bounded_test(function: Any) -> Callable[..., Any]:
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def bounded(*args: Any) -> Any:
        for value in args[first:]:
            limits.compared(value)
        limits.charge_search(args[-1], args[first])
        return function(*args)

    return bounded


def _check_join(value: Any, d: Any = "", attribute: Any = None) -> None:  # noqa: ARG001
    members = list(value)
    limits.charge_members(members)
    limits.check_weight(limits.joined_weight(str(d), members))


def _check_replace(value: Any, old: Any, new: Any, count: int | None = None) -> None:
    limits.charge_search(str(value), str(old))
    limits.charge_parts(str(value), str(old), -1 if count is None else count)
    limits.check_weight(limits.replaced_weight(str(value), str(old), str(new), count))


def _check_striptags(value: Any) -> None:
    limits.charge_tags(str(value))


def _check_trim(value: Any, chars: Any = None) -> None:
    limits.charge_strip(str(value), chars)


def _check_order(value: Any, *_: Any, **__: Any) -> None:
    limits.charge_order(list(value) if not isinstance(value, Mapping) else value)


def _check_indent(value: Any, width: Any = 4, first: Any = False, blank: Any = False) -> None:  # noqa: ARG001
    limits.charge_parts(str(value), "\n")
    lines = 1 + len(str(value).splitlines())
    limits.check_weight(len(value) + lines * (width if isinstance(width, int) else len(width)))


def _check_wordwrap(value: Any, *args: Any, **kwargs: Any) -> None:
    longest = max((len(argument) for argument in (*args, *kwargs.values()) if isinstance(argument, str)), default=1)
    limits.check_weight(len(str(value)) * (1 + longest))


def _check_format(value: Any, *args: Any, **kwargs: Any) -> None:
    limits.check_percent(str(value), [list(args), kwargs])


def _check_sum(iterable: Any, attribute: Any = None, start: Any = 0) -> None:  # noqa: ARG001
    if not isinstance(start, int | float):
        raise TemplateLimit("it sums values that are not numbers")


def _check_tojson(value: Any, ensure_ascii: Any = False, indent: Any = None, *_: Any, **_named: Any) -> None:  # noqa: ARG001
    if isinstance(indent, int | str) and (len(indent) if isinstance(indent, str) else indent) > MAX_INDENT:
        raise TemplateLimit("it indents too far")
    if indent:
        limits.check_indented(value, len(indent) if isinstance(indent, str) else indent)


_FILTER_CHECKS: dict[str, Callable[..., None]] = {
    "join": _check_join,
    "replace": _check_replace,
    "indent": _check_indent,
    "wordwrap": _check_wordwrap,
    "format": _check_format,
    "sum": _check_sum,
    "striptags": _check_striptags,
    "trim": _check_trim,
    "tojson": _check_tojson,
    **dict.fromkeys(("sort", "dictsort", "unique", "groupby", "min", "max"), _check_order),
}


def _from_json(value: str) -> Any:
    """Return the value of a JSON text: the arguments of a call, in the templates of DeepSeek V3.2 and later."""
    return json.loads(origin.plain_text(value))


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRaised(origin.plain_text(str(message)))


def _strftime_now(format: str) -> str:
    if _STRFTIME_WIDTH.search(format) or len(format) > limits.MAX_COUNT:
        raise TemplateLimit("it formats the time with a field that is too wide")
    return CLOCK.get()().strftime(format)
