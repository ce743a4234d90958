"""The format of `generation.Grammar.source`: one JSON text with everything that a compiler needs.

Owns the document, and its conversion to text and back. The text can be sent to another node. Does not know who compiles it.

    field      the field of the request that asked for the grammar, for messages
    rules      the main grammar, in Lark; `@name` refers to one of the others
    larks      name -> another grammar in Lark, with its own names
    schemas    name -> a JSON schema, its place in the request, and the blanks that its JSON can have
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import attrs

from tlserve.chat.dialect import PlacedSchema
from tlserve.generation import Grammar

COMPACT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""The usual layout of JSON, as an option of the library: one line, with at most one space after each comma and colon."""


@attrs.frozen(kw_only=True)
class GrammarSource:
    """A whole grammar. The names in `larks` and `schemas` are valid Lark names, and no two are the same."""

    field: str
    rules: str
    larks: Mapping[str, str] = attrs.field(factory=dict)
    schemas: Mapping[str, PlacedSchema] = attrs.field(factory=dict)

    def grammar(self) -> Grammar:
        """Return the grammar as the data of a request."""
        schemas = {name: [own.place, own.schema, own.blanks] for name, own in self.schemas.items()}
        document = {"field": self.field, "rules": self.rules, "larks": dict(self.larks), "schemas": schemas}
        return Grammar(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def parse_source(grammar: Grammar) -> GrammarSource:
    """Return the document from which `GrammarSource.grammar` made the text."""
    document = json.loads(grammar.source)
    schemas = {name: PlacedSchema(*own) for name, own in document["schemas"].items()}
    return GrammarSource(field=document["field"], rules=document["rules"], larks=document["larks"], schemas=schemas)
