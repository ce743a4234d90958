"""Servers that the conformance tests share: the bigram and a two-layer llama, over real sockets.

Each exists twice: as one server, and as the head of a fleet of two nodes, which must answer in the same way.
"""

from contextlib import ExitStack, contextmanager

import pytest

from tests.kit.cli.processes import wait_until
from tests.kit.http.http_calls import get
from tests.kit.model.tiny_models import write_tiny_gguf
from tlserve.testing import serve_in_thread

KINDS = ("alone", "fleet")


@contextmanager
def server_of_kind(kind, model):
    """Serve `model` by one server, or by two nodes and a head."""
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(serve_in_thread(model, settings={"fleet.internal": True}))
            for _ in range(2 if kind == "fleet" else 0)
        ]
        fleet = {"fleet.nodes": ",".join(f"http://{node.address}" for node in nodes)}
        server = stack.enter_context(serve_in_thread(model, settings=fleet if nodes else {}))
        wait_until(lambda: get(server.health_address, "/readyz").status == 200)
        yield server


@pytest.fixture(scope="module", params=KINDS)
def succ_server(request):
    with server_of_kind(request.param, "succ") as server:
        yield server


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module", params=KINDS)
def tiny_server(request, tiny_path):
    with server_of_kind(request.param, tiny_path) as server:
        yield server
