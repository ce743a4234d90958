"""The reference page of every endpoint, `docs/reference/endpoints.md`.

Owns the layout. The facts come from `operations` and `answer_schemas` in this folder, and from the tables in `tlserve.openai`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from docs.make.answer_schemas import ANSWERS
from docs.make.body_schemas import field_words
from docs.make.operations import ANSWER_HEADERS, BODIES, HEADERS, OPERATIONS, QUERIES, STATUSES, Operation
from tlserve.api.fields import Table
from tlserve.openai import answer_formats, field_tables, messages
from tlserve.responses import items

_INTRODUCTION = """# Endpoints

Every route of the API, with its fields and statuses. `python -m docs.make` makes this page from the code. The same facts for
programs are in `specs/openapi-subset.v1.yaml`, and the rules behind them in `specs/openai.md`, `specs/responses.md`,
`specs/anthropic.md`, `specs/ollama.md` and `specs/scoring.md`.

`null` is the default of every optional field. A wrong value gets 400, and a known field with a value that is not served gets 422;
both name the field in `param`. Fields that are not listed are ignored and named in the header `X-TL-Ignored`,
those inside values with their path, such as `messages[].content[].cache_control`.
"""


def endpoints_page() -> str:
    """Return the page as Markdown."""
    return "\n".join((_INTRODUCTION, *_lines())).rstrip() + "\n"


def _lines() -> Iterator[str]:
    for (method, pattern), operation in OPERATIONS.items():
        yield from _operation(f"{method} {pattern.replace('+}', '}')}", operation)
    yield from _section("Bodies", BODIES)
    yield from _section("Messages", {f"role `{role}`": table for role, table in messages.BY_ROLE.items()})
    yield from _section("Items", {f"type `{kind}`": table for kind, table in items.BY_TYPE.items()})
    yield from _section("Stream options", {"`stream_options`": field_tables.STREAM_OPTIONS})
    yield from _section("Structured outputs", {"`structured_outputs`": answer_formats.STRUCTURED_OUTPUTS})
    yield from _answers()
    yield from ("## Statuses", "", *_table(("status", "meaning"), [(str(s), words) for s, words in STATUSES.items()]))
    yield from (
        "## Request headers",
        "",
        *_table(("header", "effect"), [(f"`{n}`", h.about) for n, h in HEADERS.items()]),
    )
    rows = [(f"`{name}`", words) for name, words in ANSWER_HEADERS.items()]
    yield from ("## Answer headers", "", *_table(("header", "meaning"), rows))


def _operation(title: str, operation: Operation) -> Iterator[str]:
    yield from (f"## {title}", "", operation.summary, "")
    if operation.body is not None:
        yield f"- Body: [{operation.body}](#{operation.body.lower()})"
    streams = _stream_words(operation) if operation.chunk else ""
    yield f"- Answer: [{operation.answer}](#{operation.answer.lower()}){streams}"
    for name in operation.query:
        yield f"- Query: `{name}`, {QUERIES[name].about}"
    yield "- Headers: " + ", ".join(f"`{name}`" for name in operation.headers)
    yield "- Statuses: " + ", ".join(str(status) for status in sorted(operation.statuses))
    yield ""


def _stream_words(operation: Operation) -> str:
    link = f"[{operation.chunk}](#{str(operation.chunk).lower()})"
    if operation.media_type != "text/event-stream":
        return f"; with `stream` true, as by default, lines of {link}"
    done = ", then `[DONE]`" if operation.error == "Error" and operation.answer not in ("Response", "Infill") else ""
    return f"; with `stream` true events of {link}{done}"


def _section(title: str, tables: Mapping[str, Table]) -> Iterator[str]:
    yield from (f"## {title}", "")
    for name, table in tables.items():
        yield from (f"### {name}", "", *_table(("field", "takes"), _fields(table)))


def _fields(table: Table) -> list[tuple[str, str]]:
    return [
        (f"`{name}`" + (" (required)" if field.required else ""), field_words(field)) for name, field in table.items()
    ]


def _answers() -> Iterator[str]:
    yield from ("## Answers", "")
    for name, schema in ANSWERS.items():
        yield from (f"### {name}", "", "```json", json.dumps(_example(schema), indent=2), "```", "")


def _example(schema: Mapping[str, Any]) -> Any:
    """Return an example of the schema: a value is shown as its type, a named schema as its name."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(json.dumps(_example(option)).strip('"') for option in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return schema.get("const") or " or ".join(schema["enum"])
    if schema["type"] == "object":
        return {
            name: _example(member) for name, member in schema.get("properties", {"...": {"type": "string"}}).items()
        }
    return [_example(schema["items"])] if schema["type"] == "array" else schema["type"]


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> Iterator[str]:
    yield f"| {head[0]} | {head[1]} |"
    yield "|---|---|"
    yield from (f"| {left} | {right.replace('|', chr(92) + '|')} |" for left, right in rows)
    yield ""
