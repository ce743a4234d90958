"""Files that a bench writes beside what it prints.

Owns the sentence for a file that cannot be written.
"""

from __future__ import annotations

from pathlib import Path

from tlserve.errors import OperatorError


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`; raises OperatorError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OperatorError(f"cannot write to {path}: {error.strerror}") from None
