"""`docs/reference/fields-of-other-servers.md`: what becomes of each field of decoding that other servers have.

The rows are those of `tests/kit/peer_fields.py`, of which a test sends every one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tests.kit.peer_fields import READ, ROWS, Outcome, Row

HEAD = """# Fields of other servers

What this server does with the fields of vLLM, SGLang, llama.cpp and Ollama that shape an answer. Each is one of these:

- **honoured**: it has its effect, with the meaning that it has there.
- **refused**: the answer is 400 or 422 and names the field, unless its value asks for nothing. So no client gets another answer
  than it asked for.
- **harmless**: it has nothing to change here, such as a choice between caches.

A member that is not here, and that this server does not know, is named in the header `X-TL-Ignored`. With `X-TL-Strict: 1` it is
refused. Fields that only say how images, sound and video are read, and those between the nodes of one deployment, are left out.

The fields were read in the sources: {sources}.
[Endpoints](endpoints.md) has the fields of each endpoint with their types and bounds. This page is made from the table that the
tests send, field by field.
"""
DOORS = (
    (("chat", "completions"), "Chat and completions", "`/v1/chat/completions` and `/v1/completions`"),
    (("chat",), "Only chat", "`/v1/chat/completions`"),
    (("completions",), "Only completions", "`/v1/completions`"),
    (("generate",), "Ollama", "`/api/generate`, and `/api/chat` as far as it has them"),
    (("options",), "Ollama's options", "`options` of `/api/generate` and `/api/chat`"),
)


def peer_fields_page() -> str:
    """Return the page."""
    sources = ", ".join(f"{peer} {version}" for peer, version in READ.items())
    parts = [HEAD.replace("{sources}", sources)]
    for doors, title, paths in DOORS:
        rows = sorted((row for row in ROWS if row.doors == doors), key=lambda row: (ORDER[row.outcome], row.name))
        parts.append(f"\n## {title}\n\nFields of {paths}.\n\n" + "".join(_lines(rows)))
    return "".join(parts)


ORDER = {outcome: place for place, outcome in enumerate(Outcome)}


def _lines(rows: Iterable[Row]) -> Iterable[str]:
    yield "| field | | of | tried with |\n|---|---|---|---|\n"
    for row in rows:
        tried = json.dumps(row.value).replace("|", "\\|")
        note = f"; {row.note}" if row.note else ""
        yield f"| `{row.name}` | {row.outcome.value} | {', '.join(row.read_in)} | `{tried}`{note} |\n"
