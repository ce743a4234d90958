"""Real processes: a dead engine, a signal at the wrong moment; the errors of clients, and the exit code."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.cli.processes import server_process
from tests.kit.http.gated_server import CHAT, parse_metrics
from tests.kit.http.http_calls import chat, content_of, get, opened, parse_events, post

BROKEN = Path(__file__).with_name("broken_server.py")


def running_and_waiting(server):
    samples = parse_metrics(get(server.health_address, "/metrics").body.decode())
    return samples["tl_engine_active_sequences{}"], samples["tl_engine_queue_depth{}"]


@pytest.mark.spec("FAULT-6")
def test_a_dead_engine_gives_every_client_an_error_and_exit_code_9():
    limits = ("--model", "succ", "--set", "max_num_seqs=3")
    with server_process("dies", *limits, start=(str(BROKEN),)) as server, ThreadPoolExecutor(4) as threads:

        def read_stream(text):
            body = chat(text, max_tokens=4000, stream=True)
            with opened(server.address, "POST", CHAT, body) as response:
                return response.status, parse_events(response.read())

        def say(line):
            server.write(f"{line}\n")

        def step_until(expected):
            while running_and_waiting(server) != expected:
                steps.append(server.wait_lines("a step waits", len(steps) + 1))
                say("go")

        steps = []
        streams = [threads.submit(read_stream, text) for text in "ad"]
        step_until((2, 0))
        wholes = [threads.submit(post, server.address, CHAT, chat("g", max_tokens=4000)) for _ in range(2)]
        step_until((3, 1))
        say("die")
        told = [stream.result() for stream in streams]
        refused = [whole.result() for whole in wholes]
        assert server.wait_exit() == 9
    for status, events in told:
        assert status == 200
        *chunks, error, done = events
        assert all("choices" in chunk and chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
        assert content_of(chunks)
        assert (error["error"]["type"], error["error"]["code"], done) == ("server_error", "engine_failed", "[DONE]")
    for reply in refused:
        assert (reply.status, reply.json["error"]["code"]) == (500, "engine_failed")
    assert server.lines[-1] == "tlserve: the engine failed and every open request ended: ArithmeticError"
    assert sum("Traceback" in line for line in server.lines) == 1


@pytest.mark.spec("FAULT-7")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_load_ends_the_process_at_once_with_0(number):
    with server_process("loads", "--model", "succ", start=(str(BROKEN),)) as server:
        server.wait_line("^loading$")
        server.send_signal(number)
        assert server.wait_exit() == 0
    assert not any("Traceback" in line for line in server.lines)


@pytest.mark.spec("FAULT-7")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_without_open_requests_ends_the_process_at_once_with_0(number):
    with server_process("--model", "succ") as server:
        assert get(server.address, "/healthz").status == 200
        server.send_signal(number)
        assert server.wait_exit() == 0


@pytest.mark.spec("FAULT-15")
def test_a_second_signal_cuts_a_stream_with_an_error_and_the_process_ends_with_3():
    start = (str(BROKEN), "dies")
    with server_process("--model", "succ", start=start) as server, ThreadPoolExecutor(1) as threads:
        stream = threads.submit(post, server.address, CHAT, chat("a", max_tokens=3, stream=True))
        server.wait_line("a step waits")
        server.write("go\n")
        server.wait_lines("a step waits", 2)
        server.send_signal(signal.SIGTERM)
        server.wait_line("SIGTERM: draining")
        server.send_signal(signal.SIGTERM)
        server.wait_line("SIGTERM: cutting")
        *chunks, error, done = stream.result().events
        assert content_of(chunks) == "b"
        assert (error["error"]["code"], done) == ("draining", "[DONE]")
        server.write("go\n" * 3)
        assert server.wait_exit() == 3
