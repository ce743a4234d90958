"""The formats that a client can require of an answer's content: a schema, a regular expression, choices, a grammar.

Makes a part of a grammar from each of them. Knows nothing of requests and tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from tlserve.chat.dialect import PlacedSchema
from tlserve.chat.grammars.lark import quoted, slashed
from tlserve.chat.grammars.schemas import checked_schema, closed_schema
from tlserve.chat.grammars.user_lark import checked_lark
from tlserve.errors import ClientError

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@attrs.frozen(kw_only=True)
class AnswerFormat:
    """A rule that refers to other grammars and schemas; `field` is the field of the request that asked for it."""

    field: str
    rule: str
    larks: Mapping[str, str] = attrs.field(factory=dict)
    schemas: Mapping[str, PlacedSchema] = attrs.field(factory=dict)


def schema_format(
    schema: Any, place: str, field: str, blanks: str | None = None, *, closes: bool = True
) -> AnswerFormat:
    """Return the format of JSON that matches `schema`; raises ClientError for a schema that cannot be enforced.

    `closes`: objects have no names that the schema does not mention, unless it allows them.
    """
    checked = checked_schema(schema, place, field)
    placed = PlacedSchema(place, closed_schema(checked) if closes else checked, blanks)
    return AnswerFormat(field=field, rule="@answer", schemas={"answer": placed})


def regex_format(pattern: str, field: str) -> AnswerFormat:
    """Return the format of text that matches `pattern` from its beginning to its end."""
    if not pattern:
        raise ClientError(f"{field} is empty; send a regular expression", param=field)
    return AnswerFormat(field=field, rule=slashed(pattern))


def choice_format(choices: Sequence[str], field: str) -> AnswerFormat:
    """Return the format of text that is one of `choices`."""
    if not choices or not all(choices):
        raise ClientError(f"{field} must be a list of non-empty strings", param=field)
    lark = "start: CHOICE\nCHOICE: " + " | ".join(map(quoted, dict.fromkeys(choices)))
    return AnswerFormat(field=field, rule="@answer", larks={"answer": lark})


def lark_format(grammar: str, field: str) -> AnswerFormat:
    """Return the format of text that `grammar`, in Lark or GBNF, produces; raises ClientError for an unsupported one."""
    lark, schemas = checked_lark(grammar, field)
    return AnswerFormat(field=field, rule="@answer", larks={"answer": lark}, schemas=schemas)
