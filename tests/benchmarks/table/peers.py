"""What a comparison runs beside ours: peers.toml, read strictly.

Owns the document: one server whose formats are all started, a command that times prefill, and one that serves in its own
process. Each may be left out; its rows are then not measured. A key that is not known, or a value of another kind, is an error
with its place in the file. Refuses to run anything.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import msgspec

from tlserve.config.toml_file import read_toml
from tlserve.errors import OperatorError


@attrs.frozen(kw_only=True)
class Ours:
    """How our own server is run: `program` with `arguments` after `serve` and after `bench engine`."""

    program: str = ""
    arguments: tuple[str, ...] = ("--model", "smol-135m")

    def serve(self, port: int) -> list[str]:
        """Return the command of a server at `port`."""
        return [*self._program(), "serve", "--port", str(port), "--health-port", "0", *self.arguments]

    def engine(self, prefill_tokens: int, steps: int) -> list[str]:
        """Return the command that times the bare engine, and a token through HTTP beside it."""
        numbers = ["--prefill-tokens", str(prefill_tokens), "--steps", str(steps), "--rows", "1", "--repeat", "1"]
        return [*self._program(), "bench", "engine", *numbers, "--through-http", "--json", *self.arguments]

    def _program(self) -> list[str]:
        return shlex.split(self.program) or [sys.executable, "-m", "tlserve"]


@attrs.frozen(kw_only=True)
class _Peer:
    """A command with `{format}` in it, run for each of `formats`: the best one counts."""

    name: str
    command: str
    formats: tuple[str, ...] = ("",)

    def label(self, format_: str) -> str:
        """Return what the peer is called in tables."""
        return f"{self.name} {format_}".strip()

    def words(self, format_: str, **values: object) -> list[str]:
        """Return the words of the command for one format; raises OperatorError for a place that has no value."""
        try:
            return [word.format(format=format_, **values) for word in shlex.split(self.command)]
        except (KeyError, IndexError, ValueError) as error:
            raise OperatorError(f"the command of {self.name} cannot be filled in: {self.command!r}: {error}") from None


@attrs.frozen(kw_only=True)
class ServerPeer(_Peer):
    """A server on `{port}`, ready when GET `ready` is 200. `same_file`: the format that is the file which ours serves."""

    ready: str
    same_file: str = ""
    model: str = ""


@attrs.frozen(kw_only=True)
class PrefillPeer(_Peer):
    """A command that prints llama-bench's JSON for a prompt of `{tokens}` tokens."""


@attrs.frozen(kw_only=True)
class InProcessPeer(_Peer):
    """A command that answers `{streams}` requests at once without a server; `pattern` finds tokens/s in what it prints."""

    pattern: str = r"([0-9.]+)\D*$"


@attrs.frozen(kw_only=True)
class Peers:
    """The whole file."""

    ours: Ours = Ours()
    server: ServerPeer | None = None
    prefill: PrefillPeer | None = None
    in_process: InProcessPeer | None = None


def read_peers(path: Path) -> Peers:
    """Return what the file says; raises OperatorError with the place of what is wrong."""
    document = read_toml(path)
    unknown = [*_unknown("", Peers, document), *(name for table in TABLES for name in _unknown_in(table, document))]
    if unknown:
        raise OperatorError(f"{path}: unknown: {', '.join(unknown)}")
    try:
        return msgspec.convert(document, Peers)
    except msgspec.ValidationError as error:
        raise OperatorError(f"{path}: {error}") from None


TABLES: Mapping[str, type] = {
    "ours": Ours,
    "server": ServerPeer,
    "prefill": PrefillPeer,
    "in_process": InProcessPeer,
}


def _unknown_in(table: str, document: Mapping[str, Any]) -> Sequence[str]:
    found = document.get(table, {})
    return _unknown(f"{table}.", TABLES[table], found) if isinstance(found, dict) else ()


def _unknown(before: str, kind: type, found: Mapping[str, Any]) -> list[str]:
    """Return the keys that `kind` has not: msgspec lets them pass."""
    return [before + key for key in found if key not in attrs.fields_dict(kind)]
