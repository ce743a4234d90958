"""The arguments of a custom tool's call -> its input, while they are generated.

Owns the reading of the one member of `{"input": "..."}`. Does not know calls and events.
"""

from __future__ import annotations

import json
import re

from tlserve.chat.output.json_scan import ObjectReader, PartKind
from tlserve.responses.turns import INPUT

_HIGH = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_WHOLE = re.compile(rf'(?:[^"\\]++|{_HIGH}\\u[0-9a-fA-F]{{4}}|(?!\\u[dD][89abAB])\\u[0-9a-fA-F]{{4}}|\\[^u])*+')


class CustomInput:
    """Reads the JSON text of the arguments piece by piece."""

    def __init__(self) -> None:
        self._object = ObjectReader()
        self._is_input = False
        self._held = ""
        self._has_begun = False

    def feed(self, text: str) -> str:
        """Return the text that `text` adds to the input; an escape that is not complete is held."""
        parts, _ = self._object.read(text)
        gained = ""
        for part in parts:
            if part.kind is PartKind.KEY:
                self._is_input, self._has_begun = part.text == INPUT, False
            elif part.kind is PartKind.VALUE and self._is_input and part.text:
                gained += self._value(part.text)
        return gained

    def _value(self, text: str) -> str:
        """Return the decoded text of a part of the string, without the quotes around it."""
        self._held += text if self._has_begun else text.removeprefix('"')
        self._has_begun = True
        whole = _WHOLE.match(self._held)
        assert whole is not None
        self._held = self._held[whole.end() :]
        return str(json.loads(f'"{whole[0]}"'))
