"""How the input of a fault is shown."""

from __future__ import annotations

LONGEST = 700


def shown(given: object) -> str:
    """Return an input for a person, without the middle of a long one."""
    text = repr(given)
    return text if len(text) <= LONGEST else f"{text[:450]} ... {text[-150:]} ({len(text)} characters)"
