"""The numbers of a fleet head for /metrics.

Owns only the type; the head fills it in.
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class FleetFigures:
    """The current nodes by state, and the totals since the start; all are 0 for a server that is not a head.

    `nodes_draining` accept no new requests; `nodes_away` cannot be used at all.
    """

    nodes_ready: int = 0
    nodes_draining: int = 0
    nodes_away: int = 0
    losses_total: int = 0
    moves_total: int = 0


NO_FLEET = FleetFigures()
