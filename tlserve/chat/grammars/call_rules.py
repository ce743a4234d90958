"""Tool calls as rules of a grammar, in the form of any dialect.

Calls are constrained in one of two ways: they are the whole answer (forced), or they can come among free text, and are
constrained from their first marker on. A dialect's `CallForm` says how its calls are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from tlserve.chat.dialect import CallForm, PlacedSchema, Slot, ToolUse, marks_in
from tlserve.chat.grammars.lark import ANY_TEXT, quoted, spelled_row
from tlserve.chat.grammars.tag_arguments import held_in_marks, marked_rules
from tlserve.errors import Refusal

MAX_CALLS = 16
"""The most calls in an answer of forced calls; without it a small model might never stop."""


_INPUT_BEGIN, _INPUT_END = quoted('{"input": "'), quoted('"}')
_SLOTS = {Slot.ID: "ID: /[A-Za-z0-9]{9}/", Slot.NUMBER: "NUMBER: /[0-9]{1,2}/"}


@attrs.frozen(kw_only=True)
class CallRules:
    """The rule `calls` with the rules that it needs, and the schemas and grammars that it names."""

    lines: tuple[str, ...]
    schemas: Mapping[str, PlacedSchema]
    larks: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class CallGrammar:
    """Writes the rules for the tools of one request; `special_tokens` maps spelling to id."""

    form: CallForm
    special_tokens: Mapping[str, int]
    tools: ToolUse

    def forced(self) -> CallRules:
        """Return rules in which `calls` is one or more calls, and nothing else."""
        before, between, after = (self._row(parts) for parts in (self.form.before, self.form.between, self.form.after))
        more = f" ({between} call){{0,{MAX_CALLS - 1}}}" if self.tools.parallel else ""
        return self._rules([f"calls: {before} call{more} {after}", *self._call_lines(self.form.call)])

    def among_text(self) -> CallRules:
        """Return rules in which `calls` is any text, with a call wherever its first marker is."""
        if self.form.bare:
            forced = self.forced()
            plain = rf"/(?s:[ \t\n\r]*[^ \t\n\r{_in_class(self.form.bare)}].*)?/"
            lines = [forced.lines[0].replace("calls:", "bare_calls:"), *forced.lines[1:]]
            return attrs.evolve(forced, lines=("calls: bare_calls | PLAIN", f"PLAIN: {plain}", *lines))
        if self.form.texts:
            forced = self.forced()
            texts = " | ".join(map(self._text, self.form.texts))
            lines = [forced.lines[0].replace("calls:", "only_calls:"), *forced.lines[1:]]
            return attrs.evolve(forced, lines=(f"calls: only_calls | ({texts}) TEXT", f"TEXT: {ANY_TEXT}", *lines))
        return self._rules(self._among_lines())

    def _among_lines(self) -> list[str]:
        parts: tuple[str | Slot, ...] = self.form.before + self.form.call
        marker, rest = self._marker(str(parts[0])), parts[1:]
        rest = (str(parts[0])[len(marker) :], *rest)
        opening = f"opening_text | TEXT {self._part(marker)}" if marker in self.special_tokens else "opening_text"
        calls = "first"
        lines = self._call_lines(rest, name="first")
        if self.form.before:
            calls += f" ({self._row(self.form.between)} call)*"
            lines += self._call_lines(self.form.call)[:1]
        return [
            f"calls: (opening {calls} {self._row(self.form.after)})* TEXT",
            f"TEXT: {ANY_TEXT}",
            f"opening: {opening}",
            f"opening_text[lazy]: TEXT {quoted(marker)}",
            *lines,
        ]

    def _marker(self, text: str) -> str:
        """Return the beginning of `text` by which calls are found: its first mark, or all of it."""
        marks = [mark for mark in marks_in(text) if text.startswith(mark)]
        begin = self.form.begin if text.startswith(self.form.begin) else ""
        return next(iter(marks), begin or text)

    def _call_lines(self, parts: tuple[str | Slot, ...], name: str = "call") -> list[str]:
        """Return the rule `name` with an alternative for each tool, and the rules of arguments in tags."""
        tools = list(self._enforced())
        alternatives = [self._row(parts, tool, number) for number, (tool, _) in enumerate(tools)]
        marks = self.form.arguments
        marked = (
            line
            for number, (_, schema) in enumerate(tools)
            if marks is not None
            for line in marked_rules(f"arguments_{number}", schema, marks, self._text)
        )
        return [f"{name}: " + " | ".join(alternatives), *marked]

    def _enforced(self) -> Iterator[tuple[str, PlacedSchema]]:
        assert self.tools.enforced is not None
        marks = self.form.arguments
        for name, placed in self.tools.enforced.items():
            strict = name in self.tools.strict
            yield name, placed if marks is None else held_in_marks(placed, marks, strict=strict)

    def _rules(self, lines: list[str]) -> CallRules:
        if self.form.arguments is not None and self.tools.inputs:
            words = "tools has a grammar in Lark, and this model does not write calls as JSON; send the syntax regex"
            raise Refusal(words, param="tools")
        schemas = {} if self.form.arguments is not None else dict(self._named_schemas())
        inputs = dict(self._named_inputs())
        used = {part for part in self.form.call if isinstance(part, Slot)}
        slots = [line for slot, line in _SLOTS.items() if slot in used]
        texts = [f"arguments_{name}: {_INPUT_BEGIN} @input_{name} {_INPUT_END}" for name in inputs]
        larks = {f"input_{name}": lark for name, lark in inputs.items()}
        return CallRules(lines=(*lines, *texts, *slots), schemas=schemas, larks=larks)

    def _named_schemas(self) -> Iterator[tuple[str, PlacedSchema]]:
        for number, (name, schema) in enumerate(self._enforced()):
            if name not in self.tools.inputs:
                yield f"arguments_{number}", schema

    def _named_inputs(self) -> Iterator[tuple[str, str]]:
        for number, (name, _) in enumerate(self._enforced()):
            if name in self.tools.inputs:
                yield str(number), self.tools.inputs[name]

    def _row(self, parts: tuple[str | Slot, ...], tool: str = "", number: int = 0) -> str:
        return " ".join(self._part(part, tool, number) for part in parts)

    def _part(self, part: Any, tool: str = "", number: int = 0) -> str:
        if part is Slot.NAME:
            return quoted(tool)
        if part is Slot.ARGUMENTS:
            is_schema = self.form.arguments is None and tool not in self.tools.inputs
            return ("@" if is_schema else "") + f"arguments_{number}"
        if isinstance(part, Slot):
            return part.name
        return self._text(part)

    def _text(self, text: str) -> str:
        """Return the row that spells `text`: its control tokens, and the texts between them."""
        return spelled_row(text, self.special_tokens)


def _in_class(characters: str) -> str:
    return "".join("\\" + character for character in characters)
