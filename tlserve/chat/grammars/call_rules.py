"""Tool calls as rules of a grammar, in the form of any dialect.

Calls are constrained in one of two ways: they are the whole answer (forced), or they can come among free text, and are
constrained from their first marker on. A dialect's `CallForm` says how its calls are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from tlserve.chat.dialect import CallForm, PlacedSchema, Slot, ToolUse
from tlserve.chat.grammars.lark import ANY_TEXT, quoted, token_reference
from tlserve.chat.grammars.tag_arguments import held_in_tags, tag_rules

MAX_CALLS = 16
"""The most calls in an answer of forced calls; without it a small model might never stop."""


@attrs.frozen(kw_only=True)
class CallRules:
    """The rule `calls` with the rules that it needs, and the schemas that it names."""

    lines: tuple[str, ...]
    schemas: Mapping[str, PlacedSchema]


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
        return self._rules(self._among_lines())

    def _among_lines(self) -> list[str]:
        parts: tuple[str | Slot, ...] = self.form.before + self.form.call
        marker, rest = str(parts[0]), parts[1:]
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

    def _call_lines(self, parts: tuple[str | Slot, ...], name: str = "call") -> list[str]:
        """Return the rule `name` with an alternative for each tool, and the rules of arguments in tags."""
        tools = list(self._enforced())
        alternatives = (self._row(parts, tool, number) for number, (tool, _) in enumerate(tools))
        tags = (
            line
            for number, (_, schema) in enumerate(tools)
            if self.form.as_tags
            for line in tag_rules(f"arguments_{number}", schema)
        )
        return [f"{name}: " + " | ".join(alternatives), *tags]

    def _enforced(self) -> Iterator[tuple[str, PlacedSchema]]:
        assert self.tools.enforced is not None
        for name, placed in self.tools.enforced.items():
            yield name, held_in_tags(placed, strict=name in self.tools.strict) if self.form.as_tags else placed

    def _rules(self, lines: list[str]) -> CallRules:
        schemas = {} if self.form.as_tags else dict(self._named_schemas())
        return CallRules(lines=tuple(lines), schemas=schemas)

    def _named_schemas(self) -> Iterator[tuple[str, PlacedSchema]]:
        for number, (_, schema) in enumerate(self._enforced()):
            yield f"arguments_{number}", schema

    def _row(self, parts: tuple[str | Slot, ...], tool: str = "", number: int = 0) -> str:
        return " ".join(self._part(part, tool, number) for part in parts)

    def _part(self, part: Any, tool: str = "", number: int = 0) -> str:
        if part is Slot.NAME:
            return quoted(tool)
        if part is Slot.ARGUMENTS:
            return ("" if self.form.as_tags else "@") + f"arguments_{number}"
        token = self.special_tokens.get(part)
        return quoted(part) if token is None else token_reference(token)


def _in_class(characters: str) -> str:
    return "".join("\\" + character for character in characters)
