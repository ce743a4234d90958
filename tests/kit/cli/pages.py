"""A page of the documentation, followed as by a reader: its blocks are run in order, in an empty folder.

    ```sh server       starts a server, which the next one or the end of the page stops; `localhost:8000` in later blocks is
                       its API, `localhost:9464` its health port
    ```sh              is run to its end
    ```python          is run to its end
    ```python FILE     becomes a file; one that is named test_... is then run by pytest
    ```toml FILE       becomes a file, and so do `yaml FILE`, `ini FILE` and `dockerfile FILE`
    ```text            is the exact output of the block before it
    ```text like       is an example of the output; not compared
    ```sh once         needs the internet or its own machine: not run here

Any other kind fails, so that every example is tested.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import attrs

PATIENCE_S = 120.0
_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ADDRESS = re.compile(r" (API|health) +(?:https?://)?(\S+)|\"(api|health)\": \[\"([^\"]+)\"\]")
_WRITTEN = {"API": "localhost:8000", "health": "localhost:9464"}
NOT_RUN = {"sh once", "text like"}


@attrs.frozen
class Block:
    """A fenced block: the words after its fence, and its text."""

    kind: str
    text: str

    @property
    def language(self) -> str:
        return self.kind.partition(" ")[0]

    @property
    def file(self) -> str:
        return self.kind.partition(" ")[2]


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page that have a language; those without one are drawings."""
    return (Block(*found) for found in _BLOCK.findall(page) if found[0])


class Reader:
    """A reader who follows a page in `folder`."""

    def __init__(self, folder: Path) -> None:
        own = {
            name: value for name, value in os.environ.items() if not name.startswith("TL_") or name == "TL_MODEL_CACHE"
        }
        self._folder = folder
        self._environ = {
            **own,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TL_ENGINE__HTTP_LISTEN": "127.0.0.1:0",
            "TL_ENGINE__HEALTH_LISTEN": "127.0.0.1:0",
        }
        self._server: subprocess.Popen[str] | None = None
        self._addresses: dict[str, str] = {}
        self._said = ""

    def follow(self, block: Block) -> None:
        """Run `block`; raises AssertionError if the page is wrong."""
        match block.language, block.file:
            case "sh", "server":
                self._start(block.text)
            case "sh", "":
                self._said = self._run("bash", "-euo", "pipefail", "-c", block.text)
            case "python", "":
                self._said = self._run(sys.executable, "-c", block.text)
            case (("python" | "toml" | "yaml" | "ini" | "dockerfile" | "jinja"), file) if file:
                self._write(file, block.text)
            case "text", "":
                assert self._said == block.text
            case _:
                assert block.kind in NOT_RUN, f"unknown kind of block: {block.kind!r}"

    def _write(self, file: str, text: str) -> None:
        path = self._folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if path.name.startswith("test_"):
            self._said = self._run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file)

    def _run(self, *words: str) -> str:
        for name, address in self._addresses.items():
            words = tuple(word.replace(_WRITTEN[name], address) for word in words)
        done = subprocess.run(
            words, cwd=self._folder, env=self._environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, f"{words[-1]}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _start(self, command: str) -> None:
        self.stop()
        server = self._server = subprocess.Popen(
            ["bash", "-euc", f"exec {command}"], cwd=self._folder, env=self._environ, stderr=subprocess.PIPE, text=True
        )
        assert server.stderr is not None
        watchdog = threading.Timer(PATIENCE_S, server.kill)
        watchdog.start()
        said = []
        while len(self._addresses) < len(_WRITTEN):
            said.append(server.stderr.readline())
            if not said[-1]:
                self._server = None
                watchdog.cancel()
                server.communicate(timeout=PATIENCE_S)
                raise AssertionError(f"{command}: exit code {server.returncode}\n{''.join(said)}")
            for text_name, text_address, json_name, json_address in _ADDRESS.findall(said[-1]):
                self._addresses[(text_name or json_name).replace("api", "API")] = text_address or json_address
        watchdog.cancel()

    def stop(self) -> None:
        """End the server, if one was started; it must end well."""
        if self._server is not None:
            self._server.send_signal(signal.SIGTERM)
            self._server.communicate(timeout=PATIENCE_S)
            assert self._server.returncode == 0
            self._server = None
            self._addresses = {}
