"""A real server inside your tests: bound to a free port of the loopback interface, and ended with the block.

Use `serve` in trio tests, and `serve_in_thread` in all others.

    async with tlserve.testing.serve("succ") as server:
        client = openai.AsyncOpenAI(base_url=server.base_url, api_key="none")

    with tlserve.testing.serve_in_thread("succ") as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="none")
"""

from tlserve.programs.embedded import EmbeddedServer as TestServer
from tlserve.programs.embedded import serve
from tlserve.programs.in_thread import serve_in_thread

__all__ = ["TestServer", "serve", "serve_in_thread"]
