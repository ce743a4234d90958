"""`tlserve chat`, used through pipes and by a person at a terminal."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.cli.terminal import TerminalProgram, terminal_program
from tests.kit.engine.gated_model import GatedModel
from tests.kit.http.certificates import Certificates
from tests.kit.http.gated_server import gated_succ
from tests.kit.http.http_calls import post
from tlserve.programs.in_thread import ThreadedServer
from tlserve.testing import serve_in_thread
from tlserve.worker.local_backend import LocalBackend

CHAT = ("-m", "tlserve", "chat")


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedServer]:
    with serve_in_thread("succ") as running:
        yield running


@pytest.fixture
def gated() -> Iterator[tuple[ThreadedServer, GatedModel]]:
    gate, loaded = gated_succ()
    with serve_in_thread("succ", loaded=loaded) as running:
        try:
            yield running, gate
        finally:
            gate.open_all()


def piped(lines: str | bytes, *arguments: str) -> subprocess.CompletedProcess[str]:
    data = lines.encode() if isinstance(lines, str) else lines
    ended = subprocess.run(
        [sys.executable, *CHAT, *arguments], input=data, capture_output=True, check=False, timeout=60
    )
    return subprocess.CompletedProcess(ended.args, ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def url_of(server: ThreadedServer) -> tuple[str, str]:
    return "--url", f"http://{server.address}"


# --- pipes -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("CLI-13")
def test_each_line_of_a_pipe_is_a_turn_of_one_conversation(server: ThreadedServer) -> None:
    ended = piped("a\n\nx\n", *url_of(server), "--max-tokens", "3")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "bcd\nyz{\n"


@pytest.mark.spec("CLI-13")
def test_commands_work_in_a_pipe_and_print_to_standard_error(server: ThreadedServer) -> None:
    ended = piped("/set max_tokens 2\n/clear\na\n/retry\n/quit\na\n", *url_of(server))
    assert ended.returncode == 0
    assert ended.stderr == "max_tokens is 2\nthe conversation is empty\n"
    assert ended.stdout == "bc\nbc\n"


@pytest.mark.spec("CLI-15")
def test_a_turn_without_an_answer_gives_the_servers_words_and_code_11(server: ThreadedServer) -> None:
    ended = piped("/set top_p 7\na\n/set top_p\na\n", *url_of(server), "--max-tokens", "2")
    body = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "top_p": 7}
    words = post(server.address, "/v1/chat/completions", body).json["error"]["message"]
    assert ended.returncode == 11
    assert f"tlserve: {words}\n" in ended.stderr
    assert ended.stdout == "bc\n"


def test_a_parameter_unknown_to_the_server_is_refused(server: ThreadedServer) -> None:
    ended = piped("/set temprature 1\na\n", *url_of(server))
    assert ended.returncode == 11
    assert "temprature" in ended.stderr.splitlines()[-1]


def test_without_a_server_one_line_says_what_to_do() -> None:
    ended = piped("a\n", "--url", "http://127.0.0.1:9")
    assert ended.returncode == 10
    (line,) = ended.stderr.splitlines()
    assert line.startswith("tlserve: no server answers at 127.0.0.1:9; start one with `tlserve serve`")


def test_a_model_is_served_in_the_same_process() -> None:
    ended = piped("a\n", "--model", "succ", "--max-tokens", "3", "--set", "max_num_seqs=1")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "bcd\n", "")


def test_a_missing_model_is_one_line() -> None:
    ended = piped("a\n", "--model", "nowhere")
    assert ended.returncode == 5
    assert len(ended.stderr.splitlines()) == 1


def test_a_pipe_that_is_not_utf_8_is_refused(server: ThreadedServer) -> None:
    ended = piped(b"\xff\xfe\n", *url_of(server))
    assert ended.returncode == 10
    assert "not UTF-8" in ended.stderr


@pytest.mark.spec("CLI-17")
def test_a_saved_conversation_is_a_request_that_gets_the_same_answer(server: ThreadedServer, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    ended = piped(f"a\n/save {path}\n/save {path}\n", *url_of(server), "--max-tokens", "3", "--temperature", "0")
    assert ended.returncode == 11
    assert f"cannot write to {path}: File exists" in ended.stderr
    saved = json.loads(path.read_text())
    answer = saved["messages"].pop()
    document = post(server.address, "/v1/chat/completions", saved).json
    assert document["choices"][0]["message"]["content"] == answer["content"] == ended.stdout.rstrip("\n")


def test_a_reader_that_leaves_ends_the_chat_quietly(server: ThreadedServer) -> None:
    command = [sys.executable, *CHAT, *url_of(server), "--max-tokens", "3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"a\na\na\n")
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


@pytest.mark.spec("CLI-18")
def test_a_key_is_read_from_the_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "a-key-for-this-test-only-17"
    with serve_in_thread("succ", settings={"access.api_key": key}) as guarded:
        ended = piped("a\n", *url_of(guarded))
        assert ended.returncode == 10
        assert "set the environment variable TL_API_KEY to a key of this server" in ended.stderr
        monkeypatch.setenv("TL_API_KEY", key)
        assert piped("a\n", *url_of(guarded), "--max-tokens", "2").returncode == 0
        monkeypatch.setenv("TL_API_KEY", "another-key-than-that-17")
        ended = piped("a\n", *url_of(guarded), "--url-model", "succ")
        assert ended.returncode == 11
        assert "the server does not accept the key in the environment variable TL_API_KEY" in ended.stderr
        assert "another-key" not in ended.stderr


@pytest.mark.spec("CLI-29")
def test_a_certificate_that_is_not_trusted_is_reported_with_the_reason(tmp_path: Path) -> None:
    made, file = Certificates(tmp_path), tmp_path / "ca.pem"
    made.authority.cert_pem.write_to_path(str(file))
    with serve_in_thread("succ", settings={"tls.certificate": str(made.certificate), "tls.key": str(made.key)}) as tls:
        url = f"https://{tls.address}"
        ended = piped("a\n", "--url", url)
        assert ended.returncode == 10
        (line,) = ended.stderr.splitlines()
        assert line.startswith(
            f"tlserve: {url}: TLS handshake failed: the server's certificate is not trusted: unable to"
        )
        assert "--ca" in line
        assert piped("a\n", "--url", url, "--ca", str(file), "--max-tokens", "3").stdout == "bcd\n"
        clear = piped("a\n", *url_of(tls))
        assert (clear.returncode, "this port speaks TLS: use https" in clear.stderr) == (10, True)


# --- a terminal ------------------------------------------------------------------------------------------------------


def at_terminal(server: ThreadedServer, *arguments: str):
    return terminal_program(*CHAT, *url_of(server), "--temperature", "0", *arguments)


def quit_by_ctrl_d(chat: TerminalProgram) -> int:
    chat.wait_for("> ")
    chat.type("\x04")
    return chat.wait_exit()


def test_an_answer_is_shown_with_its_length_and_seed_and_ctrl_d_ends(server: ThreadedServer) -> None:
    with at_terminal(server, "--max-tokens", "3") as chat:
        chat.wait_for("succ at 127.0.0.1")
        chat.wait_for("> ")
        chat.type("/seed 5\n")
        chat.wait_for("seed is 5\n> ")
        chat.type("hello\n")
        assert "3 tokens" in chat.wait_for("cut at its limit, seed 5)")
        assert quit_by_ctrl_d(chat) == 0


@pytest.mark.spec("CLI-14")
def test_ctrl_c_stops_the_answer_and_not_the_program(gated: tuple[ThreadedServer, GatedModel]) -> None:
    server, gate = gated
    with at_terminal(server) as chat:
        chat.wait_for("> ")
        chat.type("a\n")
        for _ in range(3):
            gate.wait_for_step()
            gate.open_one()
        gate.wait_for_step()  # the fourth step waits: the pieces of three have arrived
        chat.press_ctrl_c()
        chat.wait_for("(stopped)")
        gate.open_all()
        chat.wait_for("> ")
        chat.type("/set max_tokens 2\n/undo\na\n")
        chat.wait_for("2 tokens")
        assert quit_by_ctrl_d(chat) == 0
    backend = server.server.running.assembled.backend
    assert isinstance(backend, LocalBackend)
    assert backend.admitted == 0


@pytest.mark.spec("CLI-14")
def test_ctrl_c_at_the_prompt_drops_the_line_and_continues(server: ThreadedServer) -> None:
    with at_terminal(server, "--max-tokens", "2") as chat:
        chat.wait_for("> ")
        chat.type("half a li")
        chat.wait_for("half a li")
        chat.press_ctrl_c()
        chat.wait_for("(Ctrl-D or /quit ends)")
        chat.wait_for("> ")
        chat.type("/quit\n")
        assert chat.wait_exit() == 0


@pytest.mark.spec("CLI-15")
def test_a_refusal_is_shown_and_the_question_can_be_asked_again(server: ThreadedServer) -> None:
    with at_terminal(server, "--max-tokens", "2") as chat:
        chat.wait_for("> ")
        chat.type("/set top_p 7\na\n")
        chat.wait_for("top_p is 7")
        chat.wait_for("> ")
        chat.type("/set top_p\n/retry\n")
        chat.wait_for("2 tokens")
        assert quit_by_ctrl_d(chat) == 0


@pytest.mark.spec("CLI-16")
def test_a_terminal_is_never_sent_the_control_characters_of_an_answer(server: ThreadedServer) -> None:
    with at_terminal(server, "--max-tokens", "160") as chat:
        chat.wait_for("> ")
        chat.type("~\n")  # after it: DEL, all of the second half, then from NUL on
        chat.wait_for("160 tokens")
        assert "\\x7f" in chat.text
        assert "\\x00\\x01" in chat.text
        assert not set("\x00\x01\x07\x7f") & set(chat.text)
        assert quit_by_ctrl_d(chat) == 0
