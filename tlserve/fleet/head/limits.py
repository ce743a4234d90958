"""What a fleet's head bounds and waits for, in one place.

Owns the figures and the reasons for their defaults. Refuses to know settings: the composition root fills them in.
"""

from __future__ import annotations

import attrs

from tlserve.fleet.link import WINDOW


@attrs.frozen(kw_only=True)
class PlacementWeights:
    """How a node is chosen; loads count sequences, scaled to a node of `SLOTS` slots.

    `load_tokens`: matched tokens that one more sequence on a node outweighs. `home_tokens`: what a conversation's home is worth,
    so that heads that know nothing of each other meet. Beyond `skip_load` more than the least loaded one no match counts.
    """

    load_tokens: float = 32.0
    home_tokens: float = 64.0
    skip_load: float = 8.0


@attrs.frozen(kw_only=True)
class FleetLimits:
    """The bounds of a head; times in seconds.

    `admission`: requests inside at once. `wall_s`: the longest that an answer takes, moves included. `moves`: nodes that may fail
    under one answer; leaving a draining node is not counted. An answer under way waits `node_wait_s` for a node that can take
    it over, and `room_wait_s` for room on one that is full. `drain_grace_s`: how long sessions stay on a draining node when
    others could have them. `window_events`: what a node makes ahead of the client. `indexed_blocks`: prompt blocks remembered
    of each node.

    A node that hangs is noticed within `poll_wait_s + poll_margin_s + retry_s`: its poll is not answered, nor one asked at once
    after it (the head may have slept, not the node). `stall_s`: the same for an engine that hangs behind a node that answers;
    `prefill_s_per_token` lengthens it while prompts are read.
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
