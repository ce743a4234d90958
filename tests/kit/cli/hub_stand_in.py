"""A hub on the loopback interface: the few endpoints that the `huggingface_hub` package uses, over repositories in memory.

It answers `GET /api/models/ORG/NAME[/revision/REV]` and `GET /ORG/NAME/resolve/COMMIT/FILE`, with Range, and can
misbehave on request. Every request is kept in `asked`.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import attrs


@attrs.define
class Repository:
    """Files of one commit; those in `lfs` are listed with their SHA-256. `wrong`: files whose bytes do not match.

    `cut_at`: the connection ends after this number of bytes of an answer, `cuts` times.
    """

    commit: str
    files: dict[str, bytes]
    revisions: tuple[str, ...] = ("main",)
    lfs: frozenset[str] = frozenset()
    gated: bool = False
    wrong: frozenset[str] = frozenset()
    cut_at: int = 0
    cuts: int = 0
    listing: list[dict[str, object]] | None = None


class HubStandIn:
    """Repositories by name, and the received requests: (method, path, Range)."""

    def __init__(self) -> None:
        self.repositories: dict[str, list[Repository]] = {}
        self.asked: list[tuple[str, str, str]] = []
        self.status = 0
        self.url = ""

    def find(self, name: str, revision: str) -> Repository | None:
        commits = self.repositories.get(name, [])
        return next((r for r in commits if revision in (*r.revisions, r.commit)), None)

    def files_asked(self) -> list[str]:
        return [path.rpartition("/")[2] for method, path, _ in self.asked if "/resolve/" in path and method == "GET"]


@contextmanager
def open_hub_stand_in() -> Iterator[HubStandIn]:
    """Serve a hub for the block."""
    hub = HubStandIn()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: HubStandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        hub.asked.append((self.command, path, self.headers.get("Range", "")))
        if hub.status:
            self._answer(hub.status, b"broken", {})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/(.+))?", path):
            self._describe(found[1], found[3] or "main")
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._content(found[1], found[2], found[3])
        else:
            self._answer(404, b"", {})

    def _describe(self, name: str, revision: str) -> None:
        if name not in self.hub.repositories:
            return self._answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        repository = self.hub.find(name, revision)
        if repository is None:
            return self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        siblings = repository.listing
        if siblings is None:
            siblings = [_described(path, data, path in repository.lfs) for path, data in repository.files.items()]
        document = {"id": name, "modelId": name, "sha": repository.commit, "siblings": siblings}
        return self._answer(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _content(self, name: str, revision: str, path: str) -> None:
        repository = self.hub.find(name, revision)
        if repository is None or path not in repository.files:
            return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        if repository.gated and self.headers.get("Authorization") != "Bearer good":
            return self._answer(401, b"", {"X-Error-Code": "GatedRepo"})
        data = repository.files[path]
        if path in repository.wrong:
            data = bytes(byte ^ 1 for byte in data)
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        return self._answer(206 if start else 200, data[start:], headers, repository)

    def _answer(self, status: int, body: bytes, headers: dict[str, str], cutting: Repository | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if cutting and cutting.cuts and len(body) > cutting.cut_at:
            cutting.cuts -= 1
            self.close_connection = True
            body = body[: cutting.cut_at]
        self.wfile.write(body)


def _described(path: str, data: bytes, lfs: bool) -> dict[str, object]:
    told: dict[str, object] = {"rfilename": path, "size": len(data), "blobId": git_sha1(data)}
    if lfs:
        told["lfs"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 130}
    return told


def git_sha1(data: bytes) -> str:
    """Return the name that git gives to a file of `data`."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
