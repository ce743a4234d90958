"""The API keys of the measured servers: from a file, from the environment, or from the command line.

Owns the order of the three, and the reading of the file. Other users of a machine can see a key on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tlserve.errors import OperatorError


def find_key(argument: str, file: str, environ: Mapping[str, str], variable: str) -> str:
    """Return the key of one server, "" if there is none; raises `OperatorError` if the file has none."""
    if argument:
        return argument
    return _read_key(file) if file else environ.get(variable, "")


def _read_key(file: str) -> str:
    try:
        key = Path(file).read_text(encoding="ascii").strip()
    except OSError as error:
        raise OperatorError(f"cannot read the key in {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OperatorError(f"{file} is not a key: write one line of ASCII characters") from None
    if not key or key.split() != [key]:
        raise OperatorError(f"{file} is not a key: write one line without spaces")
    return key
