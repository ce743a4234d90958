"""Every code block of README.md works as written; only the port is replaced.

CI runs the two long lines that make an environment from nothing. A block of an unknown kind fails, so no example is untested.
"""

import json
import os
import re
import shlex
import signal
import subprocess

import attrs
import pytest
import trio

from tests.kit.cli.processes import server_process
from tests.kit.fleet.loopback_fleet import Load
from tests.kit.http.http_calls import chat, content_of, parse_events, post
from tests.kit.source_tree import CHECKOUT
from tlserve.testing import serve_in_thread

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
WRITTEN_ADDRESS = "localhost:8000"


@attrs.frozen
class Block:
    """A fenced block and its kind."""

    language: str
    text: str

    @property
    def kind(self):
        if self.language == "sh" and self.text.startswith("python3 -m venv"):
            return "from nothing"
        if self.language == "sh" and self.text.startswith("curl "):
            return "curl"
        if self.language == "sh" and self.text.startswith("tlserve fleet "):
            return "fleet"
        return "unknown"


BLOCKS = [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)]


def of_kind(kind):
    return [pytest.param(block, id=block.text[:40]) for block in BLOCKS if block.kind == kind]


@pytest.fixture(scope="module")
def real_server(smol_path):
    with serve_in_thread(smol_path) as server:
        yield server


def test_every_block_has_a_kind_that_the_tests_run() -> None:
    kinds = [block.kind for block in BLOCKS]
    assert "unknown" not in kinds
    assert {kind: kinds.count(kind) for kind in sorted(set(kinds))} == {"curl": 1, "fleet": 1, "from nothing": 2}


@pytest.mark.real_model
@pytest.mark.curl
@pytest.mark.parametrize("block", of_kind("curl"))
def test_a_curl_line_streams_an_answer_of_the_real_model(block: Block, real_server) -> None:
    words = shlex.split(block.text.replace(WRITTEN_ADDRESS, real_server.address))
    shown = subprocess.run(words, capture_output=True, check=True, timeout=120).stdout
    events = parse_events(shown)
    assert content_of(events).strip()
    assert events[-2]["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.real_model
@pytest.mark.parametrize("block", of_kind("fleet"))
async def test_a_node_of_the_fleet_can_be_killed_in_the_middle_of_an_answer(block: Block, real_server) -> None:
    fields = {"temperature": 1.0, "ignore_eos": True, "max_tokens": 48}
    bodies = [chat("Tell me a story", model="smol-135m", seed=seed, **fields) for seed in (1, 2)]
    expected = Load(real_server.address, bodies)
    await expected.run()
    with server_process(*shlex.split(block.text)[1:]) as head:
        told = Load(await trio.to_thread.run_sync(lambda: head.address), bodies)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(told.run)
            await told.wait_tokens(24)
            os.kill(head.children()[0], signal.SIGKILL)
        await trio.to_thread.run_sync(lambda: head.wait_line("is lost"))
        head.send_signal(signal.SIGTERM)
        assert await trio.to_thread.run_sync(head.wait_exit) == 0
    assert told.answers() == expected.answers()


def test_the_command_without_a_download_gives_the_answer_in_the_readme() -> None:
    (command,) = re.findall(r"Without a download: `tlserve ([^`]+)` serves a tiny built-in model", README)
    with server_process(*shlex.split(command)) as server:
        reply = post(server.address, "/v1/chat/completions", chat("a", max_tokens=5))
        server.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
    assert json.loads(reply.body)["choices"][0]["message"]["content"] == "bcdef"
