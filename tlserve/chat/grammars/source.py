"""The language of `generation.Grammar.source`: one JSON text that holds all that a compiler needs.

Owns the document, and its way to text and back. It can go to another node as it is. Refuses to know who compiles it.

    field      the field of the request that asked for it, for messages
    rules      the main grammar, in Lark; `@name` stands for one of the others
    larks      name -> a further grammar in Lark, a world of its own
    schemas    name -> a JSON schema, its place in the request, and the blanks that its JSON may have
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import attrs

from tlserve.chat.dialect import PlacedSchema
from tlserve.generation import Grammar


@attrs.frozen(kw_only=True)
class GrammarSource:
    """A whole grammar; the names of `larks` and `schemas` are Lark's names of rules, and differ."""

    field: str
    rules: str
    larks: Mapping[str, str] = attrs.field(factory=dict)
    schemas: Mapping[str, PlacedSchema] = attrs.field(factory=dict)

    def grammar(self) -> Grammar:
        """Return it as the data of a request."""
        schemas = {name: [own.place, own.schema, own.blanks] for name, own in self.schemas.items()}
        document = {"field": self.field, "rules": self.rules, "larks": dict(self.larks), "schemas": schemas}
        return Grammar(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def parse_source(grammar: Grammar) -> GrammarSource:
    """Return what `GrammarSource.grammar` made a text of."""
    document = json.loads(grammar.source)
    schemas = {name: PlacedSchema(*own) for name, own in document["schemas"].items()}
    return GrammarSource(field=document["field"], rules=document["rules"], larks=document["larks"], schemas=schemas)
