"""The event stream of the HTTP-layer bench from uvicorn on h11 with starlette's StreamingResponse, one event a piece.

Run by `tlserve bench http --beside uvicorn="PYTHON tests/bench/peers/uvicorn_starlette.py"`, where PYTHON has uvicorn, starlette
and h11. It follows the protocol of `tests.benchmarks.http.stub_server`: the port's number first, and the end when the input ends.
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
