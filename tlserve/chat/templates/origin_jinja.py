"""jinja2 with strings that know their origin: the literals of a template have the template's letter.

Owns what jinja2 must do differently so that `tlserve.chat.templates.origin` works: how literals are compiled, how text is joined,
and the few filters and methods that would lose letters. Adds no names and no limits: that is `sandbox`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from string import Formatter
from types import BuiltinMethodType
from typing import Any

from jinja2 import nodes, pass_eval_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tlserve.chat.templates.origin import (
    OriginMarkup,
    OriginText,
    concat,
    concat_if_equal,
    origin_of,
    plain_text,
    template_text,
)
from tlserve.chat.templates.origin_json import tojson
from tlserve.text.special_tokens import TEMPLATE


class OriginCodeGenerator(CodeGenerator):
    """Compiles a literal to a name of the module, whose value is made once, with the template's letters."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._literals: dict[str, str] = {}

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802
        """Add the values of the literals at the end of the module; its functions run later."""
        super().visit_Template(node, frame)
        for text, name in self._literals.items():
            self.writeline(f"{name} = environment.template_text({text!r})")

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802
        """Write a constant."""
        self.write(self._code_of(node.as_const(frame.eval_ctx)))

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self._code_of("".join(group))

    def _code_of(self, value: Any) -> str:
        if type(value) is str:
            return self._literals.setdefault(value, f"literal_{len(self._literals)}")
        if type(value) is dict:
            members = "".join(f"{self._code_of(key)}: {self._code_of(member)}, " for key, member in value.items())
            return f"{{{members}}}"
        if type(value) in (list, tuple):
            members = "".join(f"{self._code_of(member)}, " for member in value)
            return f"[{members}]" if type(value) is list else f"({members})"
        return repr(value)


class OriginEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose renderings have letters."""

    code_generator_class: type[CodeGenerator] = OriginCodeGenerator
    concat = staticmethod(concat)
    template_text = staticmethod(template_text)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.filters.update(
            join=_keeping_join(self.filters["join"]),
            replace=_keeping_replace(self.filters["replace"]),
            tojson=tojson,
            safe=OriginMarkup,
            e=OriginMarkup.escape,
            escape=OriginMarkup.escape,
        )

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call. A method of a client's string gets no letters, unless it puts its arguments into the result.

        `partition` returns the very separator that it was given, though it is the client's text that has it there.
        """
        if type(__obj) is BuiltinMethodType and type(__obj.__self__) is str:
            if __obj.__name__ in ("join", "replace"):
                __obj = getattr(OriginText(__obj.__self__), __obj.__name__)
            else:
                args = tuple(plain_text(value) if isinstance(value, OriginText) else value for value in args)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return `str.format`, which keeps letters if its pattern is the template's and its fields are plain."""
        wrapped = super().wrap_str_format(value)
        pattern = value.__self__ if wrapped is not None else None
        if wrapped is None or type(pattern) is not OriginText or set(origin_of(pattern)) != {TEMPLATE}:
            return wrapped

        @functools.wraps(wrapped)
        def formatted(*args: Any, **kwargs: Any) -> str:
            text = wrapped(*args, **kwargs)
            by_map = value.__name__ == "format_map"
            return concat_if_equal(text, _format_parts(pattern, () if by_map else args, args[0] if by_map else kwargs))

        return formatted


def _format_parts(pattern: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text of the pattern and of its plain fields; a field that does more is left out, and then the texts differ."""
    numbers = itertools.count()
    for text, name, spec, conversion in Formatter().parse(pattern):
        yield template_text(text)
        if name is not None and not spec and not conversion:
            number = int(name) if name.isdecimal() else None if name else next(numbers)
            yield str(named.get(name) if number is None else args[number])


def _keeping_join(join: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter `join` with a separator that keeps the letters of what it joins."""

    @pass_eval_context
    @functools.wraps(join)
    def keeping(context: nodes.EvalContext, value: Any, d: Any = "", attribute: Any = None) -> Any:
        return join(context, value, OriginText(str(d)), attribute)

    return keeping


def _keeping_replace(replace: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter `replace` on a text that keeps the letters of what is put into it."""

    @pass_eval_context
    @functools.wraps(replace)
    def keeping(context: nodes.EvalContext, s: Any, *args: Any, **kwargs: Any) -> Any:
        text = str(s)
        return replace(context, OriginText(text) if type(text) is str else text, *args, **kwargs)

    return keeping
