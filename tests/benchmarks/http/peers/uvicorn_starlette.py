"""The event stream of the HTTP benchmark from uvicorn on h11 with starlette's StreamingResponse, one event per piece.

The interpreter PYTHON of the following command needs uvicorn, starlette and h11:

    python -m tests.benchmarks http --beside uvicorn="PYTHON tests/benchmarks/http/peers/uvicorn_starlette.py"

It follows the protocol of `tests.benchmarks.http.stub_server`: it prints the port number first, and ends when its input ends.
"""

import asyncio
import logging
import socket
import sys

import uvicorn
from asgi_events import HEADERS, events
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route


async def answer(request):
    body = await request.body()

    async def pieces():
        for event in events(body):
            yield event

    return StreamingResponse(pieces(), headers=HEADERS)


async def main() -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    application = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
    config = uvicorn.Config(
        application, http="h11", loop="asyncio", lifespan="off", log_level="error", access_log=False
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    print(listener.getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = server.force_exit = True
    await serving


logging.getLogger("asyncio").setLevel(logging.ERROR)  # clients that leave are part of the bench
asyncio.run(main())
