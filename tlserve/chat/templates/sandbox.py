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
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.utils import Namespace, missing

from tlserve.chat.templates import limits, origin
from tlserve.chat.templates.compiler import CountingCodeGenerator
from tlserve.chat.templates.limits import BUDGET, TemplateLimit, measured
from tlserve.chat.templates.operations import CountedEnvironment

CLOCK: ContextVar[Callable[[], datetime]] = ContextVar("template_clock")
"""The clock that `strftime_now` reads; set for each rendering."""

_REFUSED_FILTERS = ("random", "urlize", "pprint", "xmlattr", "filesizeformat")
_REFUSED_GLOBALS = ("lipsum",)
_QUICK_FILTERS = frozenset({"length", "count", "default", "d", "first", "items"})
"""Filters whose time does not depend on the size of their values."""
_OWN_ARGUMENTS = ("_loop_vars", "_block_vars")
"""Arguments that jinja2 adds to calls."""
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


class ChatEnvironment(CountedEnvironment):
    """The environment of transformers, with its work counted. It has no state: one instance serves all templates and threads."""

    code_generator_class = CountingCodeGenerator
    intercepted_binops = frozenset({"*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols], optimized=False
        )
        for name in _REFUSED_FILTERS:
            del self.filters[name]
        for name in _REFUSED_GLOBALS:
            del self.globals[name]
        self.filters["from_json"] = _from_json
        self.filters.update({name: _bounded_filter(name, function) for name, function in self.filters.items()})
        self.filters.update(trim=_trim, string=_string)
        self.tests.update({name: _bounded_test(self.tests[name]) for name in _COMPARING_TESTS})
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator, checked before and after."""
        check = _BINOP_CHECKS.get(operator)
        if check is not None:
            check(left, right)
        return measured(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call, within limits; the parameter names are jinja2's, so that no keyword argument clashes with them.

        A macro gets its arguments as they are, because its own blocks pay for what it does.
        """
        own = {name: kwargs.pop(name) for name in _OWN_ARGUMENTS if name in kwargs}
        if type(__obj) is Macro:
            return __obj(__context.eval_ctx, *args, **kwargs)
        args = tuple(map(_counted_argument, args))
        _check_method(__obj, args, kwargs)
        for value in kwargs.values():
            measured(value)
        return measured(super().call(__context, __obj, *args, **kwargs, **own))

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


# --- filters and tests ---------------------------------------------------------------------------------------------


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if name in _QUICK_FILTERS:
        return function
    first = 1 if hasattr(function, "jinja_pass_arg") else 0
    check = _FILTER_CHECKS.get(name)

    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        values = tuple(map(_counted_argument, args[first:]))
        if isinstance(values[0], list | dict | tuple):
            BUDGET.get().spend(len(values[0]))
        if name in _SLOW_FILTERS:
            BUDGET.get().spend(limits.weigh(str(values[0])) // limits.SLOW_CHARS_PER_WORK)
        for value in (*values[1:], *kwargs.values()):
            limits.check_count(value)
            measured(value)
        if check is not None:
            check(*values, **kwargs)
        return measured(function(*args[:first], *values, **kwargs))

    return bounded


def _trim(value: Any, chars: Any = None) -> str:
    """Strip the text of a value."""
    text = _string(value)
    limits.charge_method(text, "strip", (chars,))
    made: str = text.strip(chars)
    return made


def _string(value: Any) -> Any:
    """Return the text of a value; one that needs no escaping stays so."""
    if isinstance(value, str):
        return value
    BUDGET.get().spend(1 + limits.weigh(value) // limits.CHARS_PER_WORK)
    return str(value)


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
    BUDGET.get().spend(limits.weigh(value) // limits.CHARS_PER_WORK)
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
