"""The watch over one node: it polls the node, one poll at a time, until the node is gone.

Owns the deadlines that distinguish a hung node from a slow one, the second poll before a node counts as lost, and its return.
Does not know what becomes of a reply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from tlserve.errors import TlserveError
from tlserve.fleet.head.member import Member
from tlserve.fleet.head.node_claims import check_figures, check_info
from tlserve.fleet.head.polls import acks_of, has_paused
from tlserve.fleet.link import Ack, NodeInfo, NodeLost, PollReply

log = logging.getLogger("tlserve.fleet")

SHORT_WAIT_S = 0.1
"""How long a poll waits while a session is paused: its client may open the window soon."""

REST_S = 0.05
"""The pause after an empty reply that came too soon, so that no node keeps a head busy."""


class NodeWatch:
    """Watch `member` for `head`, and report to the three functions, which are called on the event loop."""

    def __init__(
        self,
        head: str,
        member: Member,
        *,
        on_hello: Callable[[NodeInfo], None],
        on_reply: Callable[[Sequence[Ack], PollReply], None],
        on_loss: Callable[[str], None],
    ) -> None:
        self._head = head
        self._member = member
        self._limits = member.limits
        self._on_hello = on_hello
        self._on_reply = on_reply
        self._on_loss = on_loss

    async def run(self) -> None:
        """Watch until cancelled."""
        pause_s = self._limits.rejoin_s
        while True:
            try:
                await self._meet()
                pause_s = self._limits.rejoin_s
                await self._poll_on()
            except TlserveError as error:
                self._on_loss(error.message)
            except Exception as error:  # an error of a link means a lost node, never a failed head
                log.exception("the link to node %s failed", self._member.node)
                self._on_loss(f"its link failed: {type(error).__name__}")
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._limits.hello_s)

    async def _meet(self) -> None:
        with trio.move_on_after(self._limits.hello_s):
            info = await self._member.link.hello()
            check_info(info)
            self._on_hello(info)
            return
        raise NodeLost(f"it did not answer within {self._limits.hello_s:g} s")

    async def _poll_on(self) -> None:
        met = trio.current_time()
        while True:
            asked = trio.current_time()
            acks, reply = await self._ask_twice()
            self._on_reply(acks, reply)
            now = trio.current_time()
            if not reply.sessions and not reply.unknown and now - asked < SHORT_WAIT_S / 2:
                await trio.sleep(REST_S)
            if self._member.is_doubted or now - met > self._greeting_interval_s():
                await self._meet()
                met = now

    def _greeting_interval_s(self) -> float:
        info = self._member.info
        return self._limits.refresh_s if info is not None and info.backend.ready else self._limits.poll_wait_s

    async def _ask_twice(self) -> tuple[Sequence[Ack], PollReply]:
        """Poll, and once more if that fails: events of a lost reply are still at the node."""
        limits = self._limits
        try:
            acks = acks_of(self._member)
            wait_s = SHORT_WAIT_S if has_paused(acks) else limits.poll_wait_s
            return acks, await self._ask(acks, wait_s, limits.poll_wait_s + limits.poll_margin_s)
        except NodeLost:
            acks = acks_of(self._member)
            return acks, await self._ask(acks, 0, limits.retry_s)

    async def _ask(self, acks: Sequence[Ack], wait_s: float, within_s: float) -> PollReply:
        with trio.move_on_after(within_s):
            reply = await self._member.link.poll(self._head, acks, wait_s)
            if reply.incarnation != self._member.identity[1]:
                raise NodeLost("it has restarted and lost its sessions")
            check_figures(reply.statistics)
            return reply
        raise NodeLost(f"it did not answer within {within_s:g} s")
