"""What the head of a fleet counts, for /metrics.

Owns the type alone; the head fills it in.
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class FleetFigures:
    """The nodes of now by their states, and what has happened since the start; a server that is no head has none of it.

    `nodes_draining` take nothing new, `nodes_away` cannot have anything now.
    """

    nodes_ready: int = 0
    nodes_draining: int = 0
    nodes_away: int = 0
    losses_total: int = 0
    moves_total: int = 0


NO_FLEET = FleetFigures()
