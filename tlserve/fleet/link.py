"""The seam between a fleet's head and its nodes: what a node is asked, what it answers, and who is there.

Owns the types and the protocols `NodeLink` and `NodeDirectory`. The links (in memory, HTTP, Ray) and the node's side
(`tlserve.fleet.node.service`) implement them. Refuses to know placement and transports.

A session is one request on one node. Its events are kept by the node and read by a cursor: a poll never takes them away, so
that an answer that is lost on its way costs nothing. An acknowledgement says how many the head has; only then the node forgets
them. It says, too, how many more are wanted: a client that reads slowly pauses its own session. `epoch` grows with every
placement of a session: what an earlier one still says is not listened to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.errors import TlserveError, Unavailable
from tlserve.generation import BackendInfo, EmbeddingRequest, EngineStatistics, GenerationEvent, GenerationRequest

WINDOW = 64
"""Events of one session that a node makes ahead of what the client of the head has taken."""


class NodeLost(Unavailable):
    """The node is gone, does not answer in time, or has become another one under the same name."""


class NoNode(Unavailable):
    """No node can take the request now."""


class StalePlacement(NodeLost):
    """The node will not have this placement: it knows a newer one of the same session, or has ended this one."""


@attrs.frozen(order=True)
class SessionKey:
    """Which placement of which session of which head; unique for ever."""

    head: str
    session: int
    epoch: int


@attrs.frozen(kw_only=True)
class NodeInfo:
    """What a node says of itself. `incarnation` is drawn when it starts: another one has none of the old one's sessions.

    `backend` describes what it serves; `refusals` says in words, by feature name, what this node cannot do. `slots`: requests
    that run side by side. `draining`: it takes nothing new.
    """

    node: str
    incarnation: str
    version: str
    backend: BackendInfo
    slots: int
    refusals: Mapping[str, str] = attrs.field(factory=dict)
    draining: bool = False

    @property
    def numerics(self) -> str:
        """Return the fingerprint: a session may move only between nodes that have the same."""
        return self.backend.system_fingerprint


@attrs.frozen
class Ack:
    """How far a head is in a session: it has the events below `have`, and wants none from `until` on for now.

    The node forgets the former; at the latter it pauses the session, and only it, until a later ack moves `until`. Both count
    the events of this placement from 0, and a session that no ack has named yet may make `WINDOW` of them. An error that ends
    a session counts as one more event. Until all of it is acknowledged, or it is cancelled, every poll returns the rest.
    """

    key: SessionKey
    have: int
    until: int


@attrs.frozen(kw_only=True)
class SessionEvents:
    """What a session has from event `start` on, in order.

    `error` follows the last of them and ends the session; to an ack's `have` it counts as one more event.
    """

    key: SessionKey
    start: int
    events: tuple[GenerationEvent, ...] = ()
    error: TlserveError | None = None


@attrs.frozen(kw_only=True)
class PollReply:
    """All that a head's sessions have beyond what it acknowledged, and how the node is.

    `unknown`: sessions that were acknowledged and that the node does not have (it restarted, or their lease ran out).
    """

    incarnation: str
    sessions: tuple[SessionEvents, ...]
    unknown: tuple[SessionKey, ...]
    statistics: EngineStatistics
    draining: bool = False


class NodeLink(Protocol):
    """One node, as a head reaches it. Every method raises `NodeLost` when the node cannot be reached."""

    async def hello(self) -> NodeInfo:
        """Ask the node what it is."""

    async def place(self, key: SessionKey, request: GenerationRequest, wall_s: float) -> None:
        """Start a session, at most `wall_s` long. Raises what the node's backend raises at admission.

        Placing a key again that is there changes nothing. A newer epoch ends the older placement. Raises `StalePlacement` for
        an epoch that is older than the session's newest, and for a placement that has ended here.
        """

    async def poll(self, head: str, acks: Sequence[Ack], wait_s: float) -> PollReply:
        """Acknowledge events and return what is there; wait up to `wait_s` while there is nothing.

        What is there: of each session of `head` the events from its `have` on; of one that was placed since, and that no ack
        names yet, all from the first. It also renews the lease of the sessions in `acks`. Abandoning the call loses nothing.
        An ack of the last event lets the node forget the session.
        """

    async def cancel(self, keys: Sequence[SessionKey]) -> None:
        """End sessions and forget them; unknown ones are ignored."""

    async def embed(self, request: EmbeddingRequest) -> tuple[NDArray[np.float32], ...]:
        """Encode on this node; raises as `Backend.embed` does."""

    async def drain(self) -> None:
        """Let the node take nothing new; its sessions go on."""


@attrs.frozen
class NodeUp:
    """A node is there and can be asked; the same name again: its link is made anew."""

    node: str
    link: NodeLink


@attrs.frozen
class NodeGone:
    """A node is no more."""

    node: str
    reason: str


NodeChange = NodeUp | NodeGone


class NodeDirectory(Protocol):
    """Who is in the fleet: a static list, names in the DNS, the actors of a cluster."""

    def changes(self) -> AsyncIterator[NodeChange]:
        """Return the changes as they are seen, first those that are there already; ends only with the directory."""
