"""How one setting is declared: its default, what it does, its unit and its bounds, as metadata of a field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs


def setting(
    default: Any,
    about: str,
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    check: Callable[[Any], object] | None = None,
    is_path: bool = False,
    is_secret: bool = False,
) -> Any:
    """Declare one setting: its default, what it does, its unit, and the values it takes (`low` and `high` inclusive).

    `check` raises `SettingsError` for a value of the wrong form; it does not check the default. A relative path in a file is
    looked up in the folder of that file. A secret is never shown and never quoted in a message.
    """
    bounds = {"low": low, "high": high, "choices": choices, "check": check}
    return attrs.field(
        default=default,
        repr=not is_secret,
        metadata={"about": about, "unit": unit, "is_path": is_path, "is_secret": is_secret, **bounds},
    )
