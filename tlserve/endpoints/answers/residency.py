"""How a request keeps its model in memory: during its work, and for a while afterwards.

Owns the wait for a model that is being loaded, which the deadline of the request bounds. Does not know what loads it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from tlserve.chat.served_model import Served
from tlserve.endpoints.answers.deadline import Deadline
from tlserve.endpoints.exchange import ApiExchange
from tlserve.errors import Refusal


@asynccontextmanager
async def loaded(exchange: ApiExchange, served: Served, deadline: Deadline) -> AsyncIterator[None]:
    """Keep the model in memory for the block, after waiting for it until the deadline; note the wait in the figures."""
    async with AsyncExitStack() as stack:
        with deadline.obeyed():
            waited_s = await stack.enter_async_context(served.residency.held())
        exchange.figures.note_load(waited_s)
        yield


@contextmanager
def kept_for(served: Served, keep_alive_s: float | None) -> Iterator[None]:
    """Let the model leave so long after the block, if the request says so; raises Refusal for 0 if it never leaves."""
    if keep_alive_s == 0 and not served.residency.can_leave:
        raise Refusal(
            f"keep_alive is 0, but the model {served.model_id!r} is always in memory; leave it out", param="keep_alive"
        )
    yield
    if keep_alive_s is not None:
        served.residency.keep_for(keep_alive_s)
