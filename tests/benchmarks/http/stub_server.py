"""A process that serves the whole API over the stub backend: `python -m tests.benchmarks.http.stub_server [TOKENS PER BATCH]`.

Owns the protocol that every server measured by `tests.benchmarks.http.layer` follows: it listens on a free port of the loopback
interface, prints the port number as the first line of its output, and ends when its input ends, so that it never outlives the
benchmark.
"""

from __future__ import annotations

import sys

import trio

from tests.benchmarks.http.stub_backend import MODEL_ID, StubBackend
from tlserve.chat.served_model import Catalogue, Served
from tlserve.config.tables.network import HttpSettings
from tlserve.endpoints.api import make_api_handler, make_fault_renderer
from tlserve.endpoints.context import ApiContext
from tlserve.http.server import Server
from tlserve.http.sockets.listener import bound_addresses, open_listeners
from tlserve.telemetry.logs import set_up_logs
from tlserve.text.tokenizer import build_tokenizer


def make_stub_server(batch_tokens: int, settings: HttpSettings | None = None) -> Server:
    """Return a server of the whole API whose backend gives `batch_tokens` tokens at a time."""
    settings = settings or HttpSettings()
    tokenizer = build_tokenizer({"tokenizer.ggml.model": "bytes"})
    served = Served(model_id=MODEL_ID, backend=StubBackend(batch_tokens), tokenizer=tokenizer)
    api = ApiContext(catalogue=Catalogue([served]), settings=settings)
    return Server(settings, make_api_handler(api), make_fault_renderer(api.new_id, api.log))


async def _serve_until_input_ends(batch_tokens: int) -> None:
    server = make_stub_server(batch_tokens)
    listeners = await open_listeners("127.0.0.1:0")
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, listeners)
        print(bound_addresses(listeners)[0].rpartition(":")[2], flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        server.cut()


if __name__ == "__main__":
    set_up_logs("warning")
    trio.run(_serve_until_input_ends, int(sys.argv[1]) if len(sys.argv) > 1 else 1)
