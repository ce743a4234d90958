"""Send pipelined HTTP requests, good and broken, over real sockets to a live server of the model `succ`, and check every answer.

    python -m tests.fuzz sockets --count 100000 --seed 7
    python -m tests.fuzz sockets --seed 7 --only 1234       # one conversation again, as printed when it failed

Each good request has an id of its own, which its answer repeats: so an answer that is missing, doubled, or belongs to bytes that
are not a request is found. A client can also leave at any byte. Afterwards the server serves, and has no task or connection left.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import random
import re
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from socket import IPPROTO_TCP, SO_LINGER, SOL_SOCKET, TCP_NODELAY, create_connection, socket

import attrs
import h11
import trio

from tests.fuzz.faults import shown
from tests.fuzz.grammar import Bad, bad_message, chunked
from tests.kit.http.http_calls import get
from tlserve.programs.in_thread import ThreadedServer
from tlserve.testing import serve_in_thread

SETTINGS: Mapping[str, str | int] = {
    "engine.context_tokens": 64,
    "engine.queue_capacity": 100_000,
    "access.allow_hosts": "x",
    "http.max_header_bytes": 6000,
    "http.max_header_count": 20,
    "http.max_body_bytes": 4000,
    "http.header_timeout_ms": 1000,
    "http.body_timeout_ms": 1000,
}
PIPELINED_BYTES = 3000
CLIENTS = 8
BATCH = 200
ANSWER_LIMIT_S = 30.0
_MODELS = "/v1/models"
# Faults in the body of a request to a path without a route, which is answered before its body is read.
IN_THE_BODY = {"coded": 404, "broken_chunk": 404, "large_body": 404}
CLOSING = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Request-Id: closing\r\nConnection: close\r\n\r\n"


@attrs.frozen
class Asked:
    """A good request: its bytes, its id, its method, and the statuses that it can get."""

    data: bytes
    number: str
    method: str
    statuses: frozenset[int]


@attrs.frozen
class Talk:
    """The bytes of one connection: good requests, mostly something broken behind them, and how the client ends it.

    `leaves_at`: the client sends that many bytes and goes; `resets`: without saying goodbye.
    """

    good: tuple[Asked, ...]
    bad: Bad | None
    cuts: tuple[int, ...]
    leaves_at: int | None = None
    resets: bool = False

    @property
    def data(self) -> bytes:
        """Return all bytes. The last request closes the connection; behind a broken message it is mostly never read."""
        last = b"" if self.bad is not None and self.bad.kind == "cut_short" else CLOSING
        return b"".join(asked.data for asked in self.good) + (self.bad.data if self.bad else b"") + last

    @property
    def requests(self) -> int:
        return len(self.good) + (self.bad is not None) + 1


def talk_of(seed: int, number: int) -> Talk:
    """Return one conversation; it depends on the seed and its number alone."""
    rng = random.Random(f"sockets/{seed}/{number}")
    good = [_asked(rng, f"{seed}-{number}-{index}") for index in range(rng.choice((0, 1, 1, 2, 4, 8)))]
    while sum(len(asked.data) for asked in good) > PIPELINED_BYTES:
        good.pop()
    bad = bad_message(rng) if not good or rng.random() < 0.5 else None
    talk = Talk(tuple(good), bad, ())
    length = len(talk.data)
    cuts = (
        tuple(sorted(rng.sample(range(1, length), min(length - 1, rng.choice((1, 2, 5))))))
        if rng.random() < 0.2
        else ()
    )
    # a message that ends too soon has its answer after a second, which most clients do not wait for
    leaves = rng.random() < (0.9 if bad is not None and bad.kind == "cut_short" else 0.2)
    return attrs.evolve(
        talk, cuts=cuts, leaves_at=rng.randrange(length + 1) if leaves else None, resets=rng.random() < 0.5
    )


_CHAT = {"model": "succ", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 3}
_WITHOUT_BODY = (
    ("GET", _MODELS, 200),
    ("GET", f"{_MODELS}/succ", 200),
    ("HEAD", _MODELS, 200),
    ("GET", "/none", 404),
    ("DELETE", _MODELS, 405),
)
_BODIES = (
    ("/v1/chat/completions", _CHAT),
    ("/v1/chat/completions", {**_CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"model": "succ", "prompt": "ab", "max_tokens": 2, "logprobs": 1}),
    ("/v1/completions", {"model": "succ", "prompt": ["ab", "b"], "max_tokens": 2, "stream": True}),
    ("/v1/embeddings", {"model": "succ", "input": "ab"}),
    ("/v1/tokenize", {"model": "succ", "text": "ab"}),
    ("/v1/detokenize", {"model": "succ", "tokens": [97]}),
)


def _asked(rng: random.Random, number: str) -> Asked:
    """Return a request of a route, mostly a valid one."""
    fields = [b"Host: x", f"X-Request-Id: {number}".encode()]
    fields += rng.choices((b"Accept: */*", b"A:b", b"X: \t z"), k=rng.choice((0, 1, 3)))
    if rng.random() < 0.4:
        method, path, status = rng.choice(_WITHOUT_BODY)
        body, statuses = b"", frozenset({status})
    else:
        method, (path, document) = "POST", rng.choice(_BODIES)
        body, statuses = json.dumps(document).encode(), frozenset({200})
        if rng.random() < 0.2:
            body, statuses = body[: rng.randrange(len(body))], frozenset({400})
    framed = body
    if method == "POST" and rng.random() < 0.4:
        fields.append(b"Transfer-Encoding: chunked")
        framed = chunked(rng, body)
    elif method == "POST":
        fields.append(b"Content-Length: %d" % len(body))
    if body and rng.random() < 0.1:
        fields.append(b"Expect: 100-continue")
    rng.shuffle(fields)
    return Asked(
        b"\r\n".join([f"{method} {path} HTTP/1.1".encode(), *fields]) + b"\r\n\r\n" + framed, number, method, statuses
    )


# --- the client ----------------------------------------------------------------------------------------------------------


def converse(address: str, talk: Talk) -> tuple[bytes, bool]:
    """Say it; return all bytes of the answers, and whether the server closed. A client that leaves early reads nothing."""
    host, _, port = address.rpartition(":")
    with create_connection((host, int(port)), ANSWER_LIMIT_S) as connection:
        connection.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        edges = [0, *talk.cuts, len(talk.data)]
        data = talk.data if talk.leaves_at is None else talk.data[: talk.leaves_at]
        with suppress(ConnectionError):
            for start, end in itertools.pairwise(edges):
                connection.sendall(data[start:end])
        if talk.leaves_at is not None:
            if talk.resets:
                connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            return b"", False
        return _all_bytes(connection)


def _all_bytes(connection: socket) -> tuple[bytes, bool]:
    received = bytearray()
    try:
        while piece := connection.recv(1 << 16):
            received += piece
    except ConnectionError:
        return bytes(received), True
    except TimeoutError:
        return bytes(received), False
    return bytes(received), True


# --- the check -----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Answer:
    """One final answer: its status, and the id of the request that it names."""

    status: int
    number: str


def answers_in(raw: bytes, methods: Sequence[str]) -> Iterator[Answer]:
    """Yield the whole answers in `raw`; raises `h11.RemoteProtocolError` for bytes that are not an answer."""
    for method in (*methods, *("GET" for _ in range(1000))):
        if not raw:
            return
        machine = h11.Connection(h11.CLIENT)
        machine.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        machine.send(h11.EndOfMessage())
        machine.receive_data(raw)
        answer = None
        while not isinstance(event := machine.next_event(), h11.EndOfMessage):
            if event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                return  # the last answer was cut
            if isinstance(event, h11.Response):
                answer = Answer(event.status_code, dict(event.headers).get(b"x-request-id", b"").decode())
        assert answer is not None
        yield answer
        raw = machine.trailing_data[0]


def fault_of(talk: Talk, raw: bytes, closed: bool) -> str:
    """Return what is wrong with the answers, or ""."""
    if talk.leaves_at is not None:
        return ""
    if not closed:
        return "the server did not close"
    try:
        answers = list(answers_in(raw, [asked.method for asked in talk.good]))
    except h11.RemoteProtocolError as error:
        return f"the answer is not HTTP: {error}"
    for asked, answer in zip(talk.good, answers, strict=False):
        if answer.number != asked.number:
            return f"the request {asked.number} got the answer of {answer.number!r} ({answer.status})"
        if answer.status not in asked.statuses:
            return f"the request {asked.number} got {answer.status}"
    if len(answers) < len(talk.good):
        return f"{len(talk.good)} requests got {len(answers)} answers"
    return _fault_behind(talk, answers[len(talk.good) :])


def _fault_behind(talk: Talk, behind: Sequence[Answer]) -> str:
    """Check the answers after those to the good requests: one for the broken message, others only where its end is clear."""
    statuses = [answer.status for answer in behind]
    if any(status == 500 for status in statuses):
        return "the server failed"
    if len({answer.number for answer in behind}) < len(behind):
        return "two answers have one id"
    if talk.bad is None:
        return "" if [answer.number for answer in behind] == ["closing"] else f"behind the last request: {statuses}"
    if talk.bad.any_answer:
        return ""
    if not talk.bad.keeps and any(answer.number == "closing" for answer in behind):
        return f"bytes behind a message of kind {talk.bad.kind} were read as a request"
    if statuses and statuses[0] not in {*talk.bad.statuses, IN_THE_BODY.get(talk.bad.kind)}:
        return f"a message of kind {talk.bad.kind} got {statuses}"
    if len(statuses) > (3 if talk.bad.keeps else 1):
        return f"a message of kind {talk.bad.kind} got {len(statuses)} answers"
    return "" if statuses or talk.bad.kind == "cut_short" else f"a message of kind {talk.bad.kind} got no answer"


# --- the server ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Fault:
    """The fault of a conversation, and the command that repeats it."""

    seed: int
    number: int
    reason: str
    talk: Talk
    raw: bytes = b""

    def __str__(self) -> str:
        replay = f"python -m tests.fuzz sockets --seed {self.seed} --only {self.number}"
        return f"{self.reason}\n  said     {shown(self.talk.data)}\n  answered {shown(self.raw)}\n  again by {replay}"


@attrs.frozen
class Left:
    """What a server has open: connections, tasks, and the descriptors of the process."""

    connections: int
    tasks: int
    descriptors: int


def left(server: ThreadedServer) -> Left:
    text = get(server.health_address, "/metrics").body.decode()
    found = re.search(r"^tl_http_connections(?:{[^}]*})? (\d+)", text, re.MULTILINE)
    assert found is not None, text
    tasks = trio.from_thread.run_sync(lambda: trio.lowlevel.current_statistics().tasks_living, trio_token=server._token)
    return Left(int(found[1]), tasks, len(os.listdir("/proc/self/fd")))


def play(server: ThreadedServer, seed: int, numbers: Sequence[int]) -> list[Fault]:
    """Say the conversations, several at a time, and check that nothing is left of them."""
    before = settled(server, None)
    with ThreadPoolExecutor(CLIENTS) as pool:
        faults = [fault for fault in pool.map(lambda number: _checked(server.address, seed, number), numbers) if fault]
    assert get(server.address, _MODELS).status == 200, "the server no longer serves a good request"
    after = settled(server, before)
    if after != before:
        reason = f"of {len(numbers)} conversations is left {after}, before {before}"
        faults.append(Fault(seed, numbers[0], reason, talk_of(seed, numbers[0])))
    return faults


def settled(server: ThreadedServer, wanted: Left | None) -> Left:
    """Return what is open when it is what is wanted, or after some seconds."""
    until = time.monotonic() + 10
    seen = left(server)
    while time.monotonic() < until and (seen.connections if wanted is None else seen != wanted):
        seen = left(server)
    return seen


def _checked(address: str, seed: int, number: int) -> Fault | None:
    talk = talk_of(seed, number)
    try:
        raw, closed = converse(address, talk)
    except OSError as error:
        return Fault(seed, number, f"the connection failed: {error}", talk)
    reason = fault_of(talk, raw, closed)
    return Fault(seed, number, reason, talk, raw) if reason else None


def search(seed: int, count: int, first: int = 0) -> tuple[int, int, list[Fault]]:
    """Send `count` requests from conversation `first` on; return the requests, the conversations and the faults."""
    requests, number, faults = 0, first, list[Fault]()
    with serve_in_thread("succ", settings=SETTINGS) as server:
        while requests < count and len(faults) < 20:
            batch = range(number, number + BATCH)
            requests += sum(talk_of(seed, each).requests for each in batch)
            number += BATCH
            faults += play(server, seed, batch)
    return requests, number - first, faults


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz sockets", description="Fuzz a live server over sockets."
    )
    parser.add_argument("--count", type=int, default=20_000, help="requests (default 20000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the number of one conversation")
    arguments = parser.parse_args(words)
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    if arguments.only is not None:
        with serve_in_thread("succ", settings=SETTINGS) as server:
            faults = play(server, arguments.seed, [arguments.only])
    else:
        requests, talks, faults = search(arguments.seed, arguments.count)
        took_s = time.monotonic() - began
        print(f"{requests} requests in {talks} conversations, {took_s:.0f} s, {requests / took_s:.0f} a second")
    for fault in faults[:10]:
        print(fault)
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
