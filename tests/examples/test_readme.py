"""Every code block of README.md does what a reader expects of it, as it is written but for the port.

The two long lines, which make an environment from nothing, are run by CI. A block of a kind that is not known here fails, so that
no example goes in untested.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys

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
        if self.language == "python":
            return "client" if WRITTEN_ADDRESS in self.text else "test"
        return "unknown"


BLOCKS = [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)]


def of_kind(kind):
    return [pytest.param(block, id=block.text[:40]) for block in BLOCKS if block.kind == kind]


@pytest.fixture(scope="module")
def real_server(smol_path):
    with serve_in_thread(smol_path) as server:
        yield server


def test_every_block_is_of_a_kind_that_is_run() -> None:
    kinds = [block.kind for block in BLOCKS]
    assert "unknown" not in kinds
    assert {kind: kinds.count(kind) for kind in sorted(set(kinds))} == {
        "client": 1,
        "curl": 1,
        "fleet": 1,
        "from nothing": 2,
        "test": 1,
    }


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
@pytest.mark.parametrize("block", of_kind("client"))
def test_a_client_example_prints_what_the_real_model_says(block: Block, real_server) -> None:
    shown = run_python(block.text.replace(WRITTEN_ADDRESS, real_server.address))
    assert shown.startswith("The opposite of hot is cold.")


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


@pytest.mark.slow
@pytest.mark.parametrize("block", of_kind("test"))
def test_an_example_of_a_test_passes(block: Block, tmp_path) -> None:
    path = tmp_path / "test_example.py"
    path.write_text(block.text, encoding="utf-8")
    run_python(
        f"import sys, pytest; sys.exit(pytest.main(['-q', '-W', 'error', '-p', 'no:cacheprovider', {str(path)!r}]))"
    )


def run_python(text: str) -> str:
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_command_that_needs_no_download_serves_what_the_readme_says() -> None:
    (command,) = re.findall(r"Without a download: `tlserve ([^`]+)` serves a tiny built-in model", README)
    with server_process(*shlex.split(command)) as server:
        reply = post(server.address, "/v1/chat/completions", chat("a", max_tokens=5))
        server.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
    assert json.loads(reply.body)["choices"][0]["message"]["content"] == "bcdef"
