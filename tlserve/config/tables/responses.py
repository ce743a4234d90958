"""The settings of the responses that are kept for later requests."""

from __future__ import annotations

import attrs

from tlserve.config.tables.declare import setting


@attrs.frozen(kw_only=True)
class ResponseSettings:
    """The table `[responses]`: which responses of /v1/responses are kept, where, and for how long."""

    store: bool = setting(
        default=True,
        about="keep responses, unless a request says store false; false: keep nothing, and refuse requests that need it",
    )
    database: str = setting(
        "",
        "file of the SQLite database with the responses; empty: they are in memory and end with the server",
        is_path=True,
    )
    max_bytes: int = setting(
        64 << 20,
        "responses with their items and events together; beyond it the oldest are deleted",
        unit="bytes",
        low=1 << 16,
        high=1 << 40,
    )
    max_age_s: int = setting(
        2_592_000, "a response is deleted at this age; the default is 30 days", unit="s", low=1, high=1 << 40
    )
