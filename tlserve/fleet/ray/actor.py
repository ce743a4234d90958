"""A node as an actor: the object that Ray runs in a process of its own, and how one is started and found.

Owns the actor's name, its options and its methods: names and bytes in, bytes out. Does not know what a node consists of: a
function that it gets starts one. Ray is imported where it is used: it must not be loaded before its variables are set.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from tlserve.fleet.ray.calls import Reference
from tlserve.fleet.ray.processes import ClusterRefused, node_resource

NAME_PREFIX = "tlserve-node/"

OPTIONS: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 64}
"""Ray never restarts a node that ended, and never repeats a call: that would be another node. Calls wait concurrently, because
each head has a poll there."""


class HostedNode(Protocol):
    """A node that runs in the actor's process, on threads of its own."""

    def call(self, name: str, body: bytes) -> bytes:
        """Answer one call of a head; from any thread."""

    def wait_empty(self, limit_s: float) -> bool:
        """Wait until the node has no session; return False if it still has one after `limit_s`."""

    def wait_ended(self) -> None:
        """Return when the node has ended."""


StartNode = Callable[[str, Callable[[], None]], HostedNode]
"""Start the node of this name; the second argument is called, from any thread, if the node ends by itself."""


class NodeActor:
    """The actor. Its constructor returns when the node answers."""

    def __init__(self, start: StartNode, node: str) -> None:
        self._host = start(node, _end_process)

    def call(self, name: str, body: bytes) -> bytes:
        """Answer one call of a head."""
        return self._host.call(name, body)

    def wait_empty(self, limit_s: float) -> bool:
        """Wait until the node has no session; return False if it still has one after `limit_s`."""
        return self._host.wait_empty(limit_s)

    def wait_ended(self) -> None:
        """Return when the node has ended; the caller also gets an error at the end of the process."""
        self._host.wait_ended()

    def process_id(self) -> int:
        """Return the id of the actor's process."""
        return os.getpid()


def _end_process() -> None:
    """End an actor whose node has failed: the heads notice at once. An exception would be an answer, not an end."""
    os._exit(1)


class Handle(Protocol):
    """An actor as another process holds it; two handles of the same actor are equal."""

    def ask(self, method: str, *arguments: object) -> Reference:
        """Call a method of `NodeActor`; the answer comes later."""


class RayHandle:
    """A handle of Ray."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RayHandle) and bool(self._actor == other._actor)

    def __hash__(self) -> int:
        return hash(self._actor)

    def ask(self, method: str, *arguments: object) -> Reference:
        """Call a method of `NodeActor`; the answer comes later."""
        reference: Reference = getattr(self._actor, method).remote(*arguments)
        return reference


def start_actor(start: StartNode, node: str, *, on_member: bool = False) -> RayHandle:
    """Start a node's actor; it ends with this process, or when the handle is dropped.

    `on_member`: on the machine where `start_member` was called for this node. Raises `ClusterRefused` for a name in use.
    """
    import ray

    options: dict[str, Any] = {"resources": {node_resource(node): 1}} if on_member else {}
    remote: Any = ray.remote(**OPTIONS)
    actor_class = remote(NodeActor)
    try:
        return RayHandle(actor_class.options(name=NAME_PREFIX + node, **options).remote(start, node))
    except ValueError as error:
        raise ClusterRefused(f"this cluster already has a node {node!r}: give this one another name") from error


def list_nodes() -> dict[str, RayHandle]:
    """Return the actors of the nodes, by the nodes' names; calls the control process, and waits for it if it is gone."""
    import ray.util

    names = [name for name in ray.util.list_named_actors() if name.startswith(NAME_PREFIX)]
    found = ((name.removeprefix(NAME_PREFIX), _find(name)) for name in sorted(names))
    return {node: handle for node, handle in found if handle is not None}


def _find(name: str) -> RayHandle | None:
    import ray

    try:
        return RayHandle(ray.get_actor(name))
    except ValueError:  # it ended since it was listed
        return None
