"""The limits and times of a fleet's head, in one place.

Owns the figures and the reasons for their defaults. Knows no settings: `tlserve.programs.fleet_head` fills them in.
"""

from __future__ import annotations

import attrs

from tlserve.fleet.link import WINDOW


@attrs.frozen(kw_only=True)
class PlacementWeights:
    """How a node is chosen; loads count sequences, scaled to a node of `SLOTS` slots.

    `load_tokens`: one more sequence on a node weighs as much as this many matched tokens. `home_tokens`: the weight of a
    conversation's home, so that heads that know nothing of each other choose the same node. Matches on a node whose load is more
    than `skip_load` above the least loaded one do not count.
    """

    load_tokens: float = 32.0
    home_tokens: float = 64.0
    skip_load: float = 8.0


@attrs.frozen(kw_only=True)
class FleetLimits:
    """The bounds of a head; times in seconds.

    `admission`: requests admitted at once. `wall_s`: the longest time of an answer, including moves. `moves`: nodes that may
    fail during one answer; leaving a draining node is not counted. An unfinished answer waits `node_wait_s` for a node that can
    continue it, and `room_wait_s` for capacity on a full one. `drain_grace_s`: how long sessions stay on a draining node while
    others could take them. `window_events`: events that a node makes ahead of the client. `indexed_blocks`: prompt blocks
    remembered for each node.

    A node that hangs is noticed within `poll_wait_s + poll_margin_s + retry_s`: it answers neither its poll nor a second one
    right after it (the head may have been suspended, not the node). `stall_s` is the same for an engine that hangs while its node
    answers; `prefill_s_per_token` lengthens it while prompts are read.
    """

    admission: int = 1024
    wall_s: float = 600.0
    moves: int = 3
    node_wait_s: float = 5.0
    room_wait_s: float = 30.0
    drain_grace_s: float = 10.0
    window_events: int = WINDOW
    indexed_blocks: int = 16_384
    poll_wait_s: float = 1.0
    poll_margin_s: float = 0.8
    retry_s: float = 0.4
    call_s: float = 10.0
    hello_s: float = 2.0
    refresh_s: float = 10.0
    rejoin_s: float = 0.25
    cancel_s: float = 1.0
    stall_s: float = 3.0
    stall_quarantine_s: float = 30.0
    prefill_s_per_token: float = 0.02
    tick_s: float = 0.25
    weights: PlacementWeights = PlacementWeights()


DEFAULT_LIMITS = FleetLimits()
