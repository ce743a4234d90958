"""Send a hundred thousand messages to the HTTP server, and compare every answer with the grammar.

    python -m tests.fuzz.framing --inputs 1000000 --seed 7       # more, or others
    python -m tests.fuzz.framing --seed 7 --only 1234            # one conversation again, as printed when it failed

The server is the real one behind memory streams (`tests.kit.http.memory_http`), under a clock that jumps. A conversation is made
from the seed and its own number alone.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator, Sequence

import attrs
import trio
from trio.testing import MockClock

from tests.fuzz.grammar import LIMITS, SMUGGLED, Conversation, make_conversation
from tests.kit.http.memory_http import MemoryServer, memory_server
from tlserve.http.messages import Request, Response
from tlserve.http.responder import Responder

_HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n((?:[!-9;-~]+: [^\r\n]*\r\n)*)\r\n")
_LENGTH = re.compile(rb"content-length: (\d+)\r\n", re.IGNORECASE)
_PER_SERVER = 500

Seen = tuple[str, str, bytes]


@attrs.frozen
class Failure:
    """The fault of a conversation, and the command that repeats it."""

    seed: int
    number: int
    reason: str
    data: bytes
    answer: bytes

    def __str__(self) -> str:
        replay = f"python -m tests.fuzz.framing --seed {self.seed} --only {self.number}"
        return f"{self.reason}\n  said     {self.data!r}\n  answered {self.answer!r}\n  again by {replay}"


def conversation(seed: int, number: int) -> Conversation:
    return make_conversation(random.Random(f"{seed}/{number}"))


def numbers_for(seed: int, inputs: int) -> Iterator[list[int]]:
    """Yield the numbers of conversations that have `inputs` messages together, as many at a time as one server gets."""
    said, number, batch = 0, 0, list[int]()
    while said < inputs:
        said += conversation(seed, number).inputs
        batch.append(number)
        number += 1
        if len(batch) == _PER_SERVER:
            yield batch
            batch = []
    yield batch


class Talker:
    """Sends conversations to one server, and records what its handler received of the current one."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._seen: list[Seen] = []

    async def handle(self, request: Request, responder: Responder) -> None:
        body = await request.read_body()
        self._seen.append((request.method, request.target, body))
        await responder.send(Response(200, body))

    async def run(self, numbers: Sequence[int]) -> list[Failure]:
        failures = []
        async with memory_server(self.handle, LIMITS) as server:
            for number in numbers:
                failures += await self._check(server, number)
            good = await server.request("POST", "/", body=b"good")
            assert (good.status, good.body) == (200, b"good"), "the server no longer serves a good request"
        return failures

    async def _check(self, server: MemoryServer, number: int) -> list[Failure]:
        self._seen.clear()
        said = conversation(self._seed, number)
        answer = await talk(server, said)
        reason = fault_of(said, answer, self._seen)
        return [Failure(self._seed, number, reason, said.data, answer)] if reason else []


async def talk(server: MemoryServer, said: Conversation) -> bytes:
    """Send all of it; return the answers until every good message is answered or the server closes."""
    stream = server.connect_raw()
    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_say, stream, said.pieces())
        while piece := await _receive(stream):
            received += piece
            if said.bad is None and not said.good[-1].last and received.count(b"HTTP/1.1 200 ") >= len(said.good):
                break
        nursery.cancel_scope.cancel()
    await trio.aclose_forcefully(stream)
    return bytes(received)


async def _say(stream: trio.abc.Stream, pieces: Sequence[bytes]) -> None:
    try:
        for piece in pieces:
            await stream.send_all(piece)
    except trio.BrokenResourceError:
        return  # the server has closed, as it can after a bad message


async def _receive(stream: trio.abc.Stream) -> bytes:
    try:
        return bytes(await stream.receive_some(65_536))
    except trio.BrokenResourceError:
        return b""


# --- the expected answers ---------------------------------------------------------------------------------------------


def fault_of(said: Conversation, answer: bytes, seen: Sequence[Seen]) -> str:
    """Return the fault, or ""."""
    statuses = read_statuses(answer, [message.method for message in said.good])
    if statuses is None:
        return "the answer is not HTTP"
    expected = [(message.method, message.target, message.body) for message in said.good]
    if list(seen[: len(expected)]) != expected:
        return f"the handler saw {seen!r} instead of {expected!r}"
    if statuses[: len(expected)] != [200] * len(expected):
        return f"good messages were answered {statuses!r}"
    return _fault_behind(said, statuses[len(expected) :], seen[len(expected) :])


def _fault_behind(said: Conversation, statuses: Sequence[int], seen: Sequence[Seen]) -> str:
    """Check the bytes after the answers to the good messages."""
    if 500 in statuses:
        return "the server failed"
    if said.bad is None:
        return f"more answers than messages: {statuses!r}" if statuses or seen else ""
    if said.bad.any_answer:
        return ""
    if not said.bad.keeps and seen:
        return f"behind a message of kind {said.bad.kind} the handler saw {seen!r}"
    if any(target != SMUGGLED for _, target, _ in seen):
        return f"the handler was given a message of kind {said.bad.kind}"
    if statuses and statuses[0] not in said.bad.statuses:
        return f"a message of kind {said.bad.kind} was answered {statuses!r}"
    return "" if statuses or said.bad.kind == "cut_short" else f"a message of kind {said.bad.kind} was not answered"


def read_statuses(raw: bytes, methods: Sequence[str]) -> list[int] | None:
    """Return the statuses of all final answers, None where the bytes are not answers; `methods` of the first requests."""
    statuses: list[int] = []
    while raw:
        head = _HEAD.match(raw)
        if head is None:
            return None
        status, length = int(head[1]), _LENGTH.search(head[2])
        raw = raw[head.end() :]
        if status < 200:
            continue
        is_head = len(statuses) < len(methods) and methods[len(statuses)] == "HEAD"
        size = int(length[1]) if length and not is_head and status != 204 else 0
        if len(raw) < size:
            return None
        raw = raw[size:]
        statuses.append(status)
    return statuses


# --- the command ------------------------------------------------------------------------------------------------------


def fuzz(seed: int, numbers: Sequence[int]) -> list[Failure]:
    """Send the conversations of `numbers` to one server, and return the faults."""
    return trio.run(Talker(seed).run, numbers, clock=MockClock(autojump_threshold=0))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.framing", description="Fuzz the framing of HTTP.")
    parser.add_argument("--inputs", type=int, default=100_000, help="messages to say")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the number of one conversation")
    arguments = parser.parse_args(words)
    batches = [[arguments.only]] if arguments.only is not None else numbers_for(arguments.seed, arguments.inputs)
    failures = [failure for batch in batches for failure in fuzz(arguments.seed, batch)]
    for failure in failures[:10]:
        print(failure)
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
