"""The lines typed into a chat, without a terminal and without a server."""

import pytest

from tlserve.cli.chat.client import AnswerEnd, parse_server, refusal
from tlserve.cli.chat.conversation import Conversation
from tlserve.cli.chat.line_commands import COMMANDS, Ask, Note, Quit, Save, take_line
from tlserve.cli.chat.screen import described, visible
from tlserve.errors import OperatorError
from tlserve.http.client.connection import HttpResponse
from tlserve.http.client.origin import Origin
from tlserve.http.messages import Headers


@pytest.fixture
def talk() -> Conversation:
    """A conversation of one question and its answer."""
    conversation = Conversation("succ", options={"temperature": 0})
    conversation.ask("a")
    conversation.answer("bcd")
    return conversation


def test_a_line_is_a_question_and_two_slashes_begin_one_with_a_slash() -> None:
    conversation = Conversation("succ")
    assert take_line(conversation, "hello ") == Ask()
    assert take_line(conversation, "//etc/hosts?") == Ask()
    assert [turn["content"] for turn in conversation.turns] == ["hello ", "/etc/hosts?"]
    assert take_line(conversation, "  ") is None


def test_the_request_holds_system_turns_and_parameters(talk: Conversation) -> None:
    take_line(talk, "/system be brief")
    take_line(talk, '/set stop ["x", "y"]')
    take_line(talk, "/seed 7")
    take_line(talk, "more")
    assert talk.body() == {
        "model": "succ",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "bcd"},
            {"role": "user", "content": "more"},
        ],
        "temperature": 0,
        "stop": ["x", "y"],
        "seed": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_parameter_without_a_value_returns_to_the_servers_default(talk: Conversation) -> None:
    assert take_line(talk, "/set") == Note("temperature = 0")
    take_line(talk, "/set temperature")
    assert talk.options == {}
    assert take_line(talk, "/set stream true") == Note(
        "stream is not a parameter: it comes from /system, /model and the turns", wrong=True
    )


def test_retry_asks_the_last_question_again_answered_or_not(talk: Conversation) -> None:
    assert take_line(talk, "/retry") == Ask()
    assert talk.turns == [{"role": "user", "content": "a"}]
    talk.answer("xyz")
    talk.ask("b")
    talk.answer("")
    assert [turn["content"] for turn in talk.turns] == ["a", "xyz"]
    assert take_line(talk, "/retry") == Ask()
    assert [turn["content"] for turn in talk.turns] == ["a", "xyz", "b"]
    assert take_line(Conversation("succ"), "/retry") == Note("there is no question to send again", wrong=True)


def test_undo_takes_back_a_question_with_its_answer_and_clear_all_of_them(talk: Conversation) -> None:
    talk.ask("b")
    talk.answer("c")
    assert take_line(talk, "/undo") == Note("removed: b")
    assert len(talk.turns) == 2
    take_line(talk, "/clear")
    assert (talk.turns, talk.options) == ([], {"temperature": 0})


def test_save_and_quit_are_returned_to_the_caller(talk: Conversation) -> None:
    assert take_line(talk, "/save my file.json") == Save("my file.json")
    assert take_line(talk, "/quit") == take_line(talk, "/exit") == Quit()


def test_an_unknown_command_gets_the_nearest_one(talk: Conversation) -> None:
    assert take_line(talk, "/sytem x") == Note("there is no command /sytem; did you mean /system?", wrong=True)
    assert len(talk.turns) == 2


def test_help_lists_every_command() -> None:
    note = take_line(Conversation("succ"), "/help")
    assert isinstance(note, Note)
    assert all(command.usage in note.text for command in COMMANDS.values())


@pytest.mark.parametrize(
    ("url", "origin", "base_path"),
    [
        ("http://127.0.0.1:8000", Origin("http", "127.0.0.1", 8000), ""),
        ("http://[::1]:1/", Origin("http", "::1", 1), ""),
        ("https://example.com/v1", Origin("https", "example.com", 443), ""),
        ("http://gateway/models/v1/", Origin("http", "gateway", 80), "/models"),
    ],
)
def test_an_address_names_host_port_and_what_paths_begin_with(url: str, origin: Origin, base_path: str) -> None:
    server = parse_server(url)
    assert (server.origin, server.base_path) == (origin, base_path)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:99999", "http://[", ""])
def test_a_wrong_server_address_is_refused(url: str) -> None:
    with pytest.raises(OperatorError, match="give one such as"):
        parse_server(url)


def test_a_key_is_sent_and_not_shown() -> None:
    target = parse_server("http://x", "secret-key")
    assert ("Authorization", "Bearer secret-key") in target.headers()
    assert "secret" not in repr(target)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "top_p is 7"}}', "top_p is 7"),
        (b'{"error": "no"}', "no"),
        (b"<html>bad gateway</html>", "the server answered 502: <html>bad gateway</html>"),
        (b"", "the server answered 502"),
        (b"[]", "the server answered 502: []"),
    ],
)
def test_a_refusal_is_shown_in_the_servers_words(body: bytes, words: str) -> None:
    assert refusal(HttpResponse(502, Headers(), body)) == words


def test_control_characters_of_an_answer_cannot_reach_a_terminal() -> None:
    assert visible("a\x1b[2Jb\r\nc\td\x07\x9b") == "a\\x1b[2Jb\\r\nc\td\\x07\\x9b"


def test_the_line_below_an_answer_says_length_speed_end_and_seed() -> None:
    assert (
        described(AnswerEnd(finish="stop", tokens=20, duration_s=2, seed="5")) == "20 tokens, 10.0 per second, seed 5"
    )
    assert described(AnswerEnd(finish="length", tokens=1, duration_s=1, seed=None)) == (
        "1 tokens, 1.0 per second, cut at its limit"
    )
    assert described(AnswerEnd(finish=None, tokens=None, duration_s=0, seed=None)) == "done"
