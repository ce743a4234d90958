"""A node of the cluster, as a head reaches it.

Owns the meaning of Ray's failures: everything but an answer is `NodeLost`. The calls are `tlserve.fleet.remote_node`.
"""

from __future__ import annotations

from typing import Any

import attrs

from tlserve.errors import ServerFault
from tlserve.fleet.link import NodeLost
from tlserve.fleet.ray.actor import Handle
from tlserve.fleet.ray.calls import wait_answer
from tlserve.fleet.remote_node import RemoteNode


class ActorFailed(ServerFault):
    """A node's actor did not start, or has ended."""


@attrs.frozen
class _Carrier:
    node: str
    handle: Handle

    async def carry(self, name: str, body: bytes) -> bytes:
        from ray import exceptions  # not before its variables are set

        try:
            return await wait_answer(self.handle.ask("call", name, body))
        except exceptions.RayTaskError as error:
            raise NodeLost(f"the node {self.node} failed while it answered {name!r}: {error.cause!r}") from None
        except exceptions.RayError as error:
            raise NodeLost(f"the node {self.node} is gone ({type(error).__name__})") from None


def ray_link(node: str, handle: Handle) -> RemoteNode:
    """Return the link to one incarnation of a node."""
    return RemoteNode(node, _Carrier(node, handle).carry)


async def ask_actor(handle: Handle, method: str, *arguments: object) -> Any:
    """Call a method of a node's actor, not of its service; raises `ActorFailed` when the actor does not answer or has ended."""
    from ray import exceptions

    try:
        return await wait_answer(handle.ask(method, *arguments))
    except exceptions.RayError as error:
        raise ActorFailed(f"the node's actor has failed: {_last_line(error)}") from None


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
