"""The error document of the public API.

Source: its error object `{"error": {"message", "type", "param", "code"}}`.
"""

from __future__ import annotations

import msgspec

from tlserve.api.errors import ErrorAnswer


def error_document(answer: ErrorAnswer) -> bytes:
    """Return the error object as JSON."""
    fields = {"message": answer.message, "type": answer.type, "param": answer.param, "code": answer.code}
    return msgspec.json.encode({"error": fields})
