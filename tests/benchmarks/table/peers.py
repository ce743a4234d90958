"""The programs that tlserve is compared with: peers.toml, read strictly.

Owns the document: servers, started in each of their formats; commands that time prefill; and commands that generate in their own
process. Each kind can be left out; its rows are then not measured. An unknown key, or a value of the wrong type, is an error with
its place in the file. Does not run anything.
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
    """How tlserve is run: `program` with `serve` and `arguments`, and `benchmarks` with `engine` and `arguments`.

    Without `program` and `benchmarks` they are `python -m tlserve` and `python -m tests.benchmarks` of this interpreter.
    """

    program: str = ""
    benchmarks: str = ""
    arguments: tuple[str, ...] = ("--model", "smol-135m")

    def serve(self, port: int) -> list[str]:
        """Return the command of a server at `port`."""
        return [*_words(self.program, "tlserve"), "serve", "--port", str(port), "--health-port", "0", *self.arguments]

    def engine(self, prefill_tokens: int, steps: int) -> list[str]:
        """Return the command that times the bare engine, and a token through HTTP next to it."""
        numbers = ["--prefill-tokens", str(prefill_tokens), "--steps", str(steps), "--rows", "1", "--repeat", "1"]
        engine = [*_words(self.benchmarks, "tests.benchmarks"), "engine"]
        return [*engine, *numbers, "--through-http", "--json", *self.arguments]


def _words(command: str, module: str) -> list[str]:
    """Return the words of a command, or those that run `module` if it is empty."""
    return shlex.split(command) or [sys.executable, "-m", module]


@attrs.frozen(kw_only=True)
class _Peer:
    """A command with `{format}` in it, run for each of `formats`; the best format counts."""

    name: str
    command: str
    formats: tuple[str, ...] = ("",)

    def label(self, format_: str) -> str:
        """Return the peer's name in tables."""
        return f"{self.name} {format_}".strip()

    def words(self, format_: str, **values: object) -> list[str]:
        """Return the words of the command for one format; raises OperatorError for a placeholder without a value."""
        try:
            return [word.format(format=format_, **values) for word in shlex.split(self.command)]
        except (KeyError, IndexError, ValueError) as error:
            raise OperatorError(
                f"the command of {self.name} has a placeholder without a value: {self.command!r}: {error}"
            ) from None


@attrs.frozen(kw_only=True)
class ServerPeer(_Peer):
    """A server on `{port}`, ready when GET `ready` returns 200. `same_file`: the format of the file that tlserve serves too."""

    ready: str
    same_file: str = ""
    model: str = ""


@attrs.frozen(kw_only=True)
class PrefillPeer(_Peer):
    """A command that prints llama-bench's JSON for a prompt of `{tokens}` tokens."""


@attrs.frozen(kw_only=True)
class InProcessPeer(_Peer):
    """A command that answers `{streams}` requests at once without a server; `pattern` finds tokens/s in its output."""

    pattern: str = r"([0-9.]+)\D*$"


@attrs.frozen(kw_only=True)
class Peers:
    """The whole file."""

    ours: Ours = Ours()
    server: tuple[ServerPeer, ...] = ()
    prefill: tuple[PrefillPeer, ...] = ()
    in_process: tuple[InProcessPeer, ...] = ()

    @property
    def same_files(self) -> frozenset[str]:
        """Return the labels of the servers that serve the same file as tlserve."""
        return frozenset(server.label(server.same_file) for server in self.server if server.same_file)


def read_peers(path: Path) -> Peers:
    """Return the contents of the file; raises OperatorError with the place of a mistake."""
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
    tables = [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict)]
    return [name for one in tables for name in _unknown(f"{table}.", TABLES[table], one)]


def _unknown(before: str, kind: type, found: Mapping[str, Any]) -> list[str]:
    """Return the keys that `kind` does not have: msgspec accepts them."""
    return [before + key for key in found if key not in attrs.fields_dict(kind)]
