"""The hand example by curl against a real process: the first command that a user types."""

import json
import signal
import subprocess

import pytest

from tests.kit.cli.processes import server_process
from tests.kit.http.http_calls import parse_events

pytestmark = pytest.mark.curl

BODY = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "temperature": 0}


@pytest.fixture(scope="module")
def address():
    """The API of `python -m tlserve --model succ`, learned from its log."""
    with server_process("--model", "succ") as server:
        yield server.address
        server.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0


def run_curl(*arguments, body=""):
    command = ["curl", "--silent", "--show-error", "--max-time", "30", *arguments]
    return subprocess.run(command, input=body, capture_output=True, text=True, check=True)


def curl(*arguments):
    return run_curl(*arguments).stdout


def test_the_hand_example_by_curl(address):
    answer = json.loads(curl(f"http://{address}/v1/chat/completions", "-d", json.dumps(BODY)))
    assert answer["choices"][0]["message"]["content"] == "bcd"
    assert answer["choices"][0]["finish_reason"] == "length"
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (1, 3, 4)


def test_the_streamed_hand_example_by_curl_is_six_events(address):
    body = json.dumps({**BODY, "stream": True, "stream_options": {"include_usage": True}})
    events = parse_events(curl("-N", f"http://{address}/v1/chat/completions", "-d", body).encode())
    assert len(events) == 6
    assert [event["choices"][0]["delta"].get("content") for event in events[:4]] == ["", "b", "c", "d"]
    assert events[4]["usage"]["total_tokens"] == 4
    assert events[5] == "[DONE]"


def test_curl_sees_the_status_and_the_reason_of_a_mistake(address):
    shown = curl("-w", "\n%{http_code} %{content_type}", f"http://{address}/v1/chat/completions", "-d", "{")
    document, _, status = shown.rpartition("\n")
    assert status == "400 application/json"
    assert json.loads(document)["error"]["type"] == "invalid_request_error"


def test_curl_sends_a_large_body_without_waiting_for_the_continue(address):
    url, body = f"http://{address}/v1/chat/completions", json.dumps({**BODY, "padding": "x" * (2 << 20)})
    shown = run_curl("-v", "-w", "\n%{http_code}", "-H", "Expect: 100-continue", url, "-d", "@-", body=body)
    assert shown.stdout.rpartition("\n")[2] == "200"
    assert "HTTP/1.1 100 Continue" in shown.stderr
    assert "Done waiting for 100-continue" not in shown.stderr


def test_curl_reuses_its_connection(address):
    url = f"http://{address}/v1/models"
    shown = curl("-w", "%{num_connects}\n", "-o", "/dev/null", url, "-o", "/dev/null", url)
    assert shown.split() == ["1", "0"]


def test_curl_asks_for_the_head_alone(address):
    assert curl("-I", f"http://{address}/v1/models").startswith("HTTP/1.1 200 OK\n")
