"""The commands of docs/how-to/keys-and-tls.md do what the page says, in its order.

A block `sh server` starts a server, which the next one ends; a block `sh` is run to its end, and prints the block `text`
after it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.source_tree import CHECKOUT

pytestmark = pytest.mark.curl

PAGE = CHECKOUT / "docs" / "how-to" / "keys-and-tls.md"
BLOCK = re.compile(r"^```(sh server|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
API = re.compile(r" API +(?:https?://)?(\S+)")
PATIENCE_S = 60.0


class Reader:
    """A folder and an environment in which the commands of the page run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TL_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TL_ENGINE__HTTP_LISTEN": "127.0.0.1:0",
            "TL_ENGINE__HEALTH_LISTEN": "",
        }
        self.server: subprocess.Popen[str] | None = None
        self.address = ""

    def start(self, command: str) -> None:
        """Start a server and wait until it reports its address."""
        self.stop()
        self.server = subprocess.Popen(
            ["bash", "-euc", command], cwd=self.folder, env=self.environ, stderr=subprocess.PIPE, text=True
        )
        assert self.server.stderr is not None
        found = next((match for line in self.server.stderr if (match := API.search(line))), None)
        assert found is not None, command
        self.address = found[1]

    def stop(self) -> None:
        """End the server that was started."""
        if self.server is not None:
            self.server.terminate()
            self.server.communicate(timeout=PATIENCE_S)
            assert self.server.returncode == 0
            self.server = None

    def run(self, commands: str) -> str:
        """Run commands to their end and return what they print."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands.replace("localhost:8000", self.address)],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        return done.stdout


@pytest.fixture
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    made = Reader(tmp_path_factory.mktemp("h"))
    yield made
    made.stop()


@pytest.mark.slow
@pytest.mark.spec("ACC-43")
def test_the_page_does_what_it_says(reader: Reader) -> None:
    blocks = [(match[1], match[2]) for match in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]
    assert len(blocks) > 12
    said = ""
    for kind, text in blocks:
        if kind == "sh server":
            reader.start(text)
        elif kind == "sh":
            said = reader.run(text)
        else:
            assert said == text
