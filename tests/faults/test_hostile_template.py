"""A template that uses all of its limits, in a real server: the health port answers meanwhile, and SIGTERM drains."""

import json
import signal
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.cli.processes import server_process
from tests.kit.model.tiny_models import write_tiny_gguf

BURNING = (
    "{% set s = 'a' * 50000 %}{% for i in range(100000) %}{% set x = s.replace('a', 'b').rfind('b' ~ s) %}{% endfor %}"
)


def status_of(url: str, body: object = None) -> int:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(url, data, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.slow
@pytest.mark.spec("CHAT-5")
def test_a_server_answers_probes_and_drains_while_a_template_uses_its_limits(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf", chat_template=BURNING)
    with server_process("--model", str(model)) as server, ThreadPoolExecutor(4) as threads:
        chat = f"http://{server.address}/v1/chat/completions"
        body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
        asked = [threads.submit(status_of, chat, body) for _ in range(4)]
        assert status_of(f"http://{server.health_address}/readyz") == 200
        assert [each.result() for each in asked] == [400] * 4
        late = threads.submit(status_of, chat, body)
        server.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert late.exception() is not None or late.result() in (400, 503)
