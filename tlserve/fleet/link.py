"""The interface between a fleet's head and its nodes: the calls, their answers, and the directory of nodes.

Owns the types and the protocols `NodeLink` and `NodeDirectory`. The links (in memory, HTTP, Ray) and the node's side
(`tlserve.fleet.node.service`) implement them. Knows nothing of placement and transports.

A session is one request on one node. The node keeps its events, and a head reads them by position: a poll never removes them,
so a reply that is lost on its way costs nothing. An acknowledgement says how many events the head has; only then the node
forgets them. It also says how many more the node may make: a client that reads slowly pauses its own session. `epoch` grows
with every placement of a session; events of an earlier placement are ignored.
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
"""Events of one session that a node makes ahead of those that the client of the head has taken."""


class NodeLost(Unavailable):
    """The node is gone, does not answer in time, or is another one under the same name now."""


class NoNode(Unavailable):
    """No node can take the request now."""


class StalePlacement(NodeLost):
    """The node refuses this placement: it knows a newer one of the same session, or this one has ended."""


@attrs.frozen(order=True)
class SessionKey:
    """Which placement of which session of which head; never used again."""

    head: str
    session: int
    epoch: int


@attrs.frozen(kw_only=True)
class NodeInfo:
    """A node's description of itself. It draws `incarnation` when it starts: a new one has no sessions of the old one.

    `backend` describes what it serves; `refusals` has a message for each feature that this node does not support. `slots`:
    requests that run at once. `draining`: it admits nothing more.
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
    """The position of a head in a session: it has the events below `have`, and takes none from `until` on for now.

    The node forgets the former; at `until` it pauses this session, until a later ack moves `until`. Both count the events of
    this placement from 0, and a session that no ack has named yet may make `WINDOW` of them. An error that ends a session
    counts as one more event. Until all events are acknowledged, or the session is cancelled, every poll returns the rest.
    """

    key: SessionKey
    have: int
    until: int


@attrs.frozen(kw_only=True)
class SessionEvents:
    """The events of a session from `start` on, in order.

    `error` follows the last of them and ends the session; to an ack's `have` it counts as one more event.
    """

    key: SessionKey
    start: int
    events: tuple[GenerationEvent, ...] = ()
    error: TlserveError | None = None


@attrs.frozen(kw_only=True)
class PollReply:
    """All events of a head's sessions that it has not acknowledged, and the node's state.

    `unknown`: sessions that were acknowledged but that the node does not have (it restarted, or their lease ended).
    """

    incarnation: str
    sessions: tuple[SessionEvents, ...]
    unknown: tuple[SessionKey, ...]
    statistics: EngineStatistics
    draining: bool = False


class NodeLink(Protocol):
    """One node, as a head calls it. Every method raises `NodeLost` if the node cannot be reached."""

    async def hello(self) -> NodeInfo:
        """Return the node's description of itself."""

    async def place(self, key: SessionKey, request: GenerationRequest, wall_s: float) -> None:
        """Start a session, at most `wall_s` long. Raises what the node's backend raises at admission.

        Placing the same key again changes nothing. A newer epoch ends the older placement. Raises `StalePlacement` for an epoch
        that is older than the session's newest, and for a placement that has ended here.
        """

    async def poll(self, head: str, acks: Sequence[Ack], wait_s: float) -> PollReply:
        """Acknowledge events and return the new ones; wait up to `wait_s` while there are none.

        The reply has the events of each session of `head` from its `have` on, or from the first if no ack names the session
        yet. A poll also renews the lease of the sessions in `acks`. Abandoning the call loses nothing. An ack of the last event
        lets the node forget the session.
        """

    async def cancel(self, keys: Sequence[SessionKey]) -> None:
        """End sessions and forget them; unknown ones are ignored."""

    async def embed(self, request: EmbeddingRequest) -> tuple[NDArray[np.float32], ...]:
        """Encode on this node; raises as `Backend.embed` does."""

    async def drain(self) -> None:
        """Let the node admit nothing more; its sessions continue."""


@attrs.frozen
class NodeUp:
    """A node has joined; the same name again replaces its link."""

    node: str
    link: NodeLink


@attrs.frozen
class NodeGone:
    """A node has left."""

    node: str
    reason: str


NodeChange = NodeUp | NodeGone


class NodeDirectory(Protocol):
    """The nodes of a fleet: a static list, names in the DNS, or the actors of a cluster."""

    def changes(self) -> AsyncIterator[NodeChange]:
        """Yield the changes as they happen, beginning with the nodes that exist already; ends only with the directory."""
