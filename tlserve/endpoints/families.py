"""The families of endpoints, by the beginning of their paths: how each shows an error and names a request.

Owns the table, which also decides for a path without a route and for a request that is refused before it reaches one. Does not
know what the endpoints do.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from tlserve.access.cors import Fields
from tlserve.access.request_id import HEADER
from tlserve.api.errors import ErrorAnswer
from tlserve.openai.errors import error_document


@attrs.frozen(kw_only=True)
class Family:
    """One family. `error_document` takes the error and the id of the request; `id_names`: the headers with that id."""

    prefixes: tuple[str, ...]
    error_document: Callable[[ErrorAnswer, str], bytes]
    id_names: tuple[str, ...] = (HEADER,)

    def id_headers(self, request_id: str) -> Fields:
        """Return the headers of every answer that name its request."""
        return tuple((name, request_id) for name in self.id_names)


def _messages_error(answer: ErrorAnswer, request_id: str) -> bytes:
    from tlserve.anthropic.documents import error_document as document

    return document(answer, request_id)


def _ollama_error(answer: ErrorAnswer, _: str) -> bytes:
    from tlserve.ollama.documents import error_document as document

    return document(answer)


OPENAI = Family(prefixes=(), error_document=lambda answer, _: error_document(answer))
ANTHROPIC = Family(prefixes=("/v1/messages",), error_document=_messages_error, id_names=(HEADER, "request-id"))
OLLAMA = Family(prefixes=("/api/",), error_document=_ollama_error)
FAMILIES: tuple[Family, ...] = (ANTHROPIC, OLLAMA)


def family_of(path: str) -> Family:
    """Return the family of a path: the public API's where no other one begins."""
    return next((family for family in FAMILIES if path.startswith(family.prefixes)), OPENAI)
