"""The event stream of the HTTP benchmark from hypercorn on trio: a raw ASGI application, one event per message.

The interpreter PYTHON of the following command needs hypercorn[trio]:

    python -m tests.benchmarks http --beside hypercorn="PYTHON tests/benchmarks/http/peers/hypercorn_trio.py"

It follows the protocol of `tests.benchmarks.http.stub_server`: it prints the port number first, and ends when its input ends.
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
