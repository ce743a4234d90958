"""A real server inside somebody's tests: bound to a free port of the loopback interface, ended with the block.

Owns the two ways in: `serve` for trio tests and `serve_in_thread` for everybody else.

    async with tlserve.testing.serve("succ") as server:
        client = openai.AsyncOpenAI(base_url=server.base_url, api_key="none")

    with tlserve.testing.serve_in_thread("succ") as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="none")
"""

from tlserve.programs.embedded import EmbeddedServer as TestServer
from tlserve.programs.embedded import serve
from tlserve.programs.in_thread import serve_in_thread

__all__ = ["TestServer", "serve", "serve_in_thread"]
