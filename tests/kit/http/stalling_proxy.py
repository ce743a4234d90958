"""A TCP proxy that can stop forwarding without closing anything: a network that loses all packets."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class StallingProxy:
    """Forward connections on a free port to `target` ("host:port"); use it as a context manager."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._flows = threading.Event()
        self._flows.set()
        self._closed = False

    @property
    def address(self) -> str:
        """Return "host:port" of the proxy."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def stall(self) -> None:
        """Stop forwarding; connections stay open, and new ones are accepted."""
        self._flows.clear()

    def flow(self) -> None:
        """Forward again, the held bytes first."""
        self._flows.set()

    def __enter__(self) -> StallingProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closed = True
        self._flows.set()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._flows.wait()
                if self._closed:
                    return
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
