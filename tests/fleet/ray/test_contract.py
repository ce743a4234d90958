"""The contract of every `Backend`, for a head whose nodes are actors of a real cluster."""

from contextlib import asynccontextmanager

import pytest
import trio

from tests.contract import test_backend as contract
from tests.kit.fleet.http_fleet import MODEL
from tests.kit.fleet.ray_cluster import running_cluster
from tests.kit.fleet.ray_nodes import standing_nodes
from tlserve.fleet.head.backend import FleetBackend
from tlserve.fleet.ray.cluster import join_cluster

pytestmark = pytest.mark.ray

globals().update({name: test for name, test in vars(contract).items() if name.startswith("test_")})


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as processes, standing_nodes(processes, ["a", "b"]):
        yield processes


@pytest.fixture
def open_backend(cluster):
    @asynccontextmanager
    async def ray_fleet():
        async with join_cluster(cluster.settings, cluster.address) as joined, trio.open_nursery() as nursery:
            head = FleetBackend(joined.directory(), MODEL)
            await nursery.start(head.run)
            await head.wait_ready(2)
            yield head
            nursery.cancel_scope.cancel()

    return ray_fleet
