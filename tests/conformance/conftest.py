"""Servers that the conformance tests share: the bigram and a two-layer llama, over real sockets."""

import pytest

from tests.kit.tiny_models import write_tiny_gguf
from tlserve.testing import serve_in_thread


@pytest.fixture(scope="module")
def succ_server():
    with serve_in_thread("succ") as server:
        yield server


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def tiny_server(tiny_path):
    with serve_in_thread(tiny_path) as server:
        yield server
