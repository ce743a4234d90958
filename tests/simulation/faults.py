"""The faults of a simulated run: what is done to an engine, to a node of a fleet, or to the link to one."""

from __future__ import annotations

from collections.abc import Collection

import trio

from tests.kit.fleet.fake_node import FakeFleet, FakeNode
from tests.simulation.loop_backend import OTHER_HEAD, LoopBackend
from tests.simulation.plan import Fault
from tlserve.errors import TlserveError
from tlserve.fleet.link import SessionKey
from tlserve.generation import GenerationRequest

CUT_NODE_S = 0.5
"""How long a node that is cut still tells its heads how their sessions ended."""


async def harm_engine(fault: Fault, backend: LoopBackend) -> None:
    """Hold the engine for a while, or let it fail."""
    if fault.kind == "fail":
        backend.fail()
        return
    backend.hold()
    await trio.sleep(fault.lasts_s)
    backend.go_on()


def node_of(fault: Fault, fleet: FakeFleet, names: Collection[str]) -> FakeNode:
    """Return the node of `names` that a fault hits: one that has sessions, if there are any."""
    nodes = [node for name, node in fleet.nodes.items() if name in names]
    busy = [node for node in nodes if node.sessions] or nodes
    return busy[fault.node % len(busy)]


async def harm_node(fault: Fault, node: FakeNode, fleet: FakeFleet) -> None:
    """Do what `fault` says to `node` or to the link to it."""
    if fault.kind == "kill_node" and sum(other.is_alive for other in fleet.nodes.values()) > 1:
        node.kill()
    elif fault.kind == "restart_node":
        await node.restart()
    elif fault.kind == "freeze_node":
        node.freeze()
        await trio.sleep(fault.lasts_s)
        node.thaw()
    elif fault.kind in ("drain_node", "cut_node"):
        await _end_node(node, is_cut=fault.kind == "cut_node")
    elif fault.kind == "link":
        getattr(node.faults, fault.link[0]).extend([fault.link[1]] * fault.times)
    elif fault.kind == "other_head":
        await _place_for_other_head(node)
    elif fault.kind in ("hold", "fail"):
        await harm_engine(fault, _backend_of(node))


def _backend_of(node: FakeNode) -> LoopBackend:
    assert isinstance(node.backend, LoopBackend)
    return node.backend


async def _end_node(node: FakeNode, *, is_cut: bool) -> None:
    """Let the node begin its drain; one that is cut ends every session and then its process."""
    service, backend = node.service, _backend_of(node)
    if service is None:
        return
    await service.drain()
    backend.drained_at = trio.current_time()
    if is_cut:
        backend.cut()
        await trio.sleep(CUT_NODE_S)
        if node.service is service:
            node.kill()


async def _place_for_other_head(node: FakeNode) -> None:
    """Place a session of a head that ends at once: nobody polls for it, and nobody cancels it."""
    request = GenerationRequest(prompt=(5, 6, 7), max_tokens=60, seed=1, tenant=OTHER_HEAD, request_id=OTHER_HEAD)
    if node.service is not None:
        try:
            await node.service.place(SessionKey(OTHER_HEAD, node.service.open_sessions + 1, 1), request, 600.0)
        except TlserveError:
            return
