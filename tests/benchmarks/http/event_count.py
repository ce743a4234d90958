"""Clients that only count: many streams of server-sent events, read at once and at little cost.

Owns the sockets and the counting. It does not parse: an event is one `data: ` in the bytes, which no payload of these streams
contains. It uses one thread and the system's poll call, so that the reader is faster than the server it measures.
"""

from __future__ import annotations

import json
import selectors
import socket
import time

import attrs

from tlserve.config.addresses import Address
from tlserve.errors import OperatorError

MARK = b"data: "
_RECEIVE_BYTES = 1 << 18
_PATIENCE_S = 30.0


@attrs.frozen(kw_only=True)
class EventRate:
    """Events that all clients together received in `seconds`, and the share of a core that counting used."""

    events: int
    seconds: float
    reader_share: float

    @property
    def events_per_s(self) -> float:
        """Return the rate."""
        return self.events / self.seconds


def count_events(address: Address, *, clients: int, events: int, seconds: float) -> EventRate:
    """Keep `clients` streams of `events` tokens open for `seconds` and count their events; raises OperatorError."""
    request = _request(address, events)
    counter = _Counter(address, request)
    try:
        for _ in range(clients):
            counter.open()
        counter.run(seconds / 4)  # warm-up, not counted
        counter.events, began_cpu, began = 0, time.process_time(), time.perf_counter()
        counter.run(seconds)
        elapsed = time.perf_counter() - began
        share = (time.process_time() - began_cpu) / elapsed
        return EventRate(events=counter.events, seconds=elapsed, reader_share=share)
    finally:
        counter.close()


def _request(address: Address, events: int) -> bytes:
    message = {"role": "user", "content": "count"}
    body = json.dumps({"model": "stub", "messages": [message], "max_tokens": events, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


class _Counter:
    def __init__(self, address: Address, request: bytes) -> None:
        self.events = 0
        self._address = (address.host, address.port)
        self._request = request
        self._selector = selectors.DefaultSelector()

    def open(self) -> None:
        """Begin one stream; its state is the end of the bytes read so far, because a mark can begin there."""
        connection = socket.create_connection(self._address, timeout=_PATIENCE_S)
        connection.sendall(self._request)
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, bytearray())

    def run(self, seconds: float) -> None:
        """Count for `seconds`; a stream that ends is replaced by another."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            ready = self._selector.select(_PATIENCE_S)
            if not ready:
                raise OperatorError(f"the server sent nothing for {_PATIENCE_S:.0f} s")
            for key, _ in ready:
                self._read(key)

    def _read(self, key: selectors.SelectorKey) -> None:
        connection, tail = key.fileobj, key.data
        assert isinstance(connection, socket.socket)
        try:
            data = connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise OperatorError(f"the server broke off a stream: {error.strerror}") from None
        if not data:
            self._end(connection, tail)
            return
        self.events += (bytes(tail) + data).count(MARK)
        tail[:] = (bytes(tail) + data)[1 - len(MARK) :]

    def _end(self, connection: socket.socket, tail: bytearray) -> None:
        if not tail:
            raise OperatorError("the server closed a connection without an answer")
        self._selector.unregister(connection)
        connection.close()
        self.open()

    def close(self) -> None:
        for key in tuple(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()
