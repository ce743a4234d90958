"""A head over nodes of the scripted successor backend, all in one event loop: no wire, no threads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from tests.kit.fleet.fake_node import FakeDirectory
from tests.kit.scripted_backend import INFO, ScriptedBackend
from tlserve.fleet.head.backend import FleetBackend
from tlserve.fleet.head.overview import FleetModel
from tlserve.fleet.node.service import NodeService

MODEL = FleetModel(
    model_id=INFO.model_id,
    max_context=INFO.context_tokens,
    vocabulary_size=INFO.vocabulary_size,
    embedding_size=INFO.embedding_size,
)


@asynccontextmanager
async def successor_fleet(nodes: int = 2) -> AsyncIterator[FleetBackend]:
    """Run `nodes` nodes and a head for the block; a node's service is its own link."""
    services = {f"n{number}": NodeService(ScriptedBackend(), node=f"n{number}", slots=64) for number in range(nodes)}
    head = FleetBackend(FakeDirectory(services), MODEL)
    async with trio.open_nursery() as nursery:
        for service in services.values():
            await nursery.start(service.run)
        await nursery.start(head.run)
        await head.wait_ready(nodes)
        yield head
        nursery.cancel_scope.cancel()
