"""A node's calls as bytes, on both sides: a link only carries a name and a body, and a body back.

Owns the table of calls, how long each may take, and the rule that every failure on the way is `NodeLost`. Does not know what
carries the bytes: an HTTP connection, an actor of a cluster, or a function in a test.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import trio
from numpy.typing import NDArray

from tlserve.errors import TlserveError
from tlserve.fleet import wire
from tlserve.fleet.link import Ack, NodeInfo, NodeLink, NodeLost, PollReply, SessionKey
from tlserve.generation import EmbeddingRequest, GenerationRequest

Carry = Callable[[str, bytes], Awaitable[bytes]]
"""Send a call's name and body to the node and return its answer; raises `NodeLost`. It is cancelled if it takes too long."""


@attrs.frozen(kw_only=True)
class CallTimes:
    """How long each call may take, in seconds; a poll may take `poll_margin_s` longer than its `wait_s`."""

    hello_s: float = 2.0
    place_s: float = 10.0
    poll_margin_s: float = 1.0
    cancel_s: float = 1.0
    embed_s: float = 300.0
    drain_s: float = 2.0


USUAL_TIMES = CallTimes()


# --- the node's side --------------------------------------------------------------------------------------------------


@attrs.frozen
class _Call:
    arguments: type
    ask: Callable[[NodeLink, Any], Awaitable[object]]


async def _hello(node: NodeLink, _: wire.Hello) -> object:
    return await node.hello()


async def _place(node: NodeLink, asked: wire.Place) -> None:
    await node.place(asked.key, asked.request, asked.wall_s)


async def _poll(node: NodeLink, asked: wire.Poll) -> object:
    return wire.poll_answer_of(await node.poll(asked.head, asked.acks, asked.wait_s))


async def _cancel(node: NodeLink, asked: wire.Cancel) -> None:
    await node.cancel(asked.keys)


async def _embed(node: NodeLink, asked: EmbeddingRequest) -> object:
    return wire.vectors_to_bytes(await node.embed(asked))


async def _drain(node: NodeLink, _: wire.Hello) -> None:
    await node.drain()


CALLS: Mapping[str, _Call] = {
    "hello": _Call(wire.Hello, _hello),
    "place": _Call(wire.Place, _place),
    "poll": _Call(wire.Poll, _poll),
    "cancel": _Call(wire.Cancel, _cancel),
    "embed": _Call(EmbeddingRequest, _embed),
    "drain": _Call(wire.Hello, _drain),
}
"""The calls by name: the type of the arguments, and the method of the node."""


async def answer_call(node: NodeLink, name: str, body: bytes) -> bytes:
    """Return the answer to the call `name` of `CALLS`, even if the node raises one of our errors.

    Raises `WireRefused` for a body that cannot be read: then the node was not called.
    """
    call = CALLS[name]
    arguments: object = wire.read(body, call.arguments)
    try:
        reply = wire.reply_of(await call.ask(node, arguments))
    except TlserveError as error:
        reply = wire.Reply(fault=wire.fault_of(error))
    return wire.write(reply)


# --- the head's side --------------------------------------------------------------------------------------------------


class RemoteNode:
    """A `NodeLink` whose calls are carried by `carry`; `node` is its name in errors.

    `is_lost`: the last call that had enough time for an answer got none.
    """

    def __init__(self, node: str, carry: Carry, times: CallTimes = USUAL_TIMES) -> None:
        self.node = node
        self.is_lost = False
        self._carry = carry
        self._times = times

    async def hello(self) -> NodeInfo:
        """Return the node's description of itself."""
        return await self._ask("hello", wire.Hello(), NodeInfo, self._times.hello_s)

    async def place(self, key: SessionKey, request: GenerationRequest, wall_s: float) -> None:
        """Start a session; raises the node's refusal."""
        await self._ask("place", wire.Place(key, request, wall_s), type(None), self._times.place_s)

    async def poll(self, head: str, acks: Sequence[Ack], wait_s: float) -> PollReply:
        """Acknowledge events and return the new ones."""
        asked, within_s = wire.Poll(head, tuple(acks), wait_s), wait_s + self._times.poll_margin_s
        answer = await self._ask("poll", asked, wire.PollAnswer, within_s, max(wait_s, within_s / 2))
        return wire.poll_reply_of(answer)

    async def cancel(self, keys: Sequence[SessionKey]) -> None:
        """End sessions and forget them."""
        await self._ask("cancel", wire.Cancel(tuple(keys)), type(None), self._times.cancel_s)

    async def embed(self, request: EmbeddingRequest) -> tuple[NDArray[np.float32], ...]:
        """Encode on this node."""
        return wire.vectors_of(await self._ask("embed", request, list[bytes], self._times.embed_s))

    async def drain(self) -> None:
        """Let the node admit nothing more."""
        await self._ask("drain", wire.Hello(), type(None), self._times.drain_s)

    async def _ask(
        self, name: str, arguments: object, kind: type[wire.T], within_s: float, due_s: float | None = None
    ) -> wire.T:
        """Call the node and return its answer; raises `NodeLost` if there is none within `within_s`, or the node's own error.

        A call that is abandoned after `due_s`, by default half of `within_s`, had enough time for an answer.
        """
        answer = await self._carried(name, wire.write(arguments), within_s, within_s / 2 if due_s is None else due_s)
        return wire.result_of(wire.read(answer, wire.Reply), kind)

    async def _carried(self, name: str, body: bytes, within_s: float, due_s: float) -> bytes:
        began = trio.current_time()
        try:
            with trio.move_on_after(within_s):
                answer = await self._carry(name, body)
                self.is_lost = False
                return answer
        except NodeLost:
            self.is_lost = True
            raise
        except trio.Cancelled:
            self.is_lost |= trio.current_time() - began >= due_s
            raise
        self.is_lost = True
        raise NodeLost(f"the node {self.node} did not answer {name!r} within {within_s:g} s")
