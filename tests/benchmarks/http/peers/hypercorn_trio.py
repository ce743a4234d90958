"""The event stream of the HTTP-layer bench from hypercorn on trio: a raw ASGI application, one event a message.

Run by `tlserve bench http --beside hypercorn="PYTHON tests/bench/peers/hypercorn_trio.py"`, where PYTHON has hypercorn[trio].
It follows the protocol of `tests.benchmarks.http.stub_server`: the port's number first, and the end when the input ends.
"""

import socket
import sys

import trio
from asgi_events import application
from hypercorn.config import Config
from hypercorn.trio import serve


async def main() -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    config = Config()
    config.bind = [f"fd://{listener.fileno()}"]
    config.accesslog = None
    config.errorlog = None
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, application, config)
        print(listener.getsockname()[1], flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


trio.run(main)
