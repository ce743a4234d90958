"""Read a TOML file, or say in one line why that is not possible.

Owns the messages. Does not know what the document means.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli

from tlserve.errors import SettingsError


def read_toml(path: Path) -> dict[str, Any]:
    """Return the document of a file; raises `SettingsError` with the file and the place in it, but none of its text."""
    try:
        return tomli.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8: byte {error.start}"
    except tomli.TOMLDecodeError as error:
        reason = f"line {error.lineno}, column {error.colno}: {error.msg}"
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or hundreds of nested lists
        reason = f"cannot be read: {str(error)[:200]}"
    raise SettingsError((f"{path}: {reason}",))
