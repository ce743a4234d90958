"""A node of the cluster, as a head reaches it.

Owns what Ray's failures mean: whatever is no answer is `NodeLost`. Refuses to know the calls (`tlserve.fleet.remote_node`).
"""

from __future__ import annotations

import attrs
import ray.exceptions

from tlserve.fleet.link import NodeLost
from tlserve.fleet.ray_actor import Handle
from tlserve.fleet.ray_calls import wait_answer
from tlserve.fleet.remote_node import RemoteNode


@attrs.frozen
class _Carrier:
    node: str
    handle: Handle

    async def carry(self, name: str, body: bytes) -> bytes:
        try:
            return await wait_answer(self.handle.ask("call", name, body))
        except ray.exceptions.RayTaskError as error:
            raise NodeLost(f"the node {self.node} failed while it answered {name!r}: {error.cause!r}") from None
        except ray.exceptions.RayError as error:
            raise NodeLost(f"the node {self.node} is gone ({type(error).__name__})") from None


def ray_link(node: str, handle: Handle) -> RemoteNode:
    """Return the link to one incarnation of a node."""
    return RemoteNode(node, _Carrier(node, handle).carry)
