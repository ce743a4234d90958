"""`tlserve chat`: talk to a model in the terminal, over the public API like any other client.

Owns the arguments and the loop: a line, a decision, an answer. By default it talks to the server that `tlserve` starts; `--url`
names another, and `--model` starts one in this process, on a free port, until the chat ends.

Ctrl-C stops the answer, not the program: the connection is closed, and the server frees the resources of the answer.
"""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import trio

from tlserve.cli import exit_codes
from tlserve.cli.chat.client import (
    AnswerEnd,
    AnswerFailed,
    ChatServer,
    ServerMissing,
    list_models,
    parse_server,
    stream_answer,
)
from tlserve.cli.chat.conversation import Conversation
from tlserve.cli.chat.line_commands import Ask, Note, Outcome, Quit, Save, take_line
from tlserve.cli.chat.screen import Screen, open_screen
from tlserve.cli.settings_arguments import add_pair_argument
from tlserve.config.environment import SERVER_KEY, process_environ
from tlserve.errors import OperatorError

DEFAULT_URL = "http://127.0.0.1:8000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the server to talk to (default {DEFAULT_URL})")
    parser.add_argument(
        "--ca", default="", metavar="FILE", help="PEM file of the certificates that are trusted for https"
    )
    parser.add_argument("--model", metavar="PATH", help="start a server of this model in this process instead")
    parser.add_argument("--url-model", metavar="ID", help="model that answers; without it the first one that is served")
    parser.add_argument("--system", default="", metavar="TEXT", help="system text of the conversation")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.7,
        metavar="T",
        help="sampling temperature; 0 gives the likeliest answer, and small models ramble at 1",
    )
    parser.add_argument(
        "--max-tokens", type=int, default=512, metavar="N", help="longest answer, in tokens; /set changes it"
    )
    add_pair_argument(parser, "a setting of the server that --model starts")
    parser.epilog = f"The API key of the server is read from the environment variable {SERVER_KEY}."


def run(arguments: argparse.Namespace) -> int:
    """Run the chat until the input ends; return 0, or 11 if a piped turn got no answer. Raises `OperatorError`."""
    screen = open_screen()
    with _server(arguments, screen) as server:
        model = arguments.url_model or _first_model(server)
        if screen.is_terminal:
            screen.note(f"{model} at {server.origin.authority}; /help lists the commands")
        options: dict[str, object] = {"temperature": arguments.temperature, "max_tokens": arguments.max_tokens}
        conversation = Conversation(model, arguments.system, options=options)
        return Chat(server, conversation, screen).run()


@contextmanager
def _server(arguments: argparse.Namespace, screen: Screen) -> Iterator[ChatServer]:
    """Yield the server of the chat; it is started here if `--model` names a model."""
    if arguments.model is None:
        yield parse_server(arguments.url, process_environ().get(SERVER_KEY, ""), arguments.ca)
        return
    from tlserve.programs.in_thread import serve_in_thread
    from tlserve.telemetry.logs import set_up_logs

    set_up_logs("warning")
    settings = {name if "." in name else f"engine.{name}": value for name, value in arguments.pairs}
    with ExitStack() as stack:
        with screen.waiting(f"loading {arguments.model}"):
            embedded = stack.enter_context(serve_in_thread(arguments.model, settings=settings))
        yield parse_server(f"http://{embedded.address}")


def _first_model(server: ChatServer) -> str:
    try:
        models = trio.run(list_models, server)
    except ServerMissing as fault:
        hint = "start one with `tlserve serve`, name one with --url, or give --model"
        raise OperatorError(f"{fault.message}; {hint}") from fault
    except AnswerFailed as fault:
        raise OperatorError(fault.message) from fault
    if not models:
        raise OperatorError("the server serves no model")
    return models[0]


class Chat:
    """The loop over the user's lines."""

    def __init__(self, server: ChatServer, conversation: Conversation, screen: Screen) -> None:
        self._chat_server = server
        self._conversation = conversation
        self._screen = screen
        self._code = exit_codes.DONE

    def run(self) -> int:
        """Handle lines until they end; return the exit code."""
        for line in self._screen.lines():
            outcome = take_line(self._conversation, line)
            if isinstance(outcome, Quit):
                break
            if outcome is not None:
                self._do(outcome)
        return self._code

    def _do(self, outcome: Outcome) -> None:
        match outcome:
            case Ask():
                self._ask()
            case Save(path):
                self._save(path)
            case Note(text, wrong):
                self._fail(text) if wrong else self._screen.note(text)

    def _fail(self, text: str) -> None:
        self._screen.fault(text)
        if not self._screen.is_terminal:
            self._code = exit_codes.NOT_ANSWERED

    def _ask(self) -> None:
        pieces: list[str] = []

        def show(piece: str) -> None:
            pieces.append(piece)
            self._screen.piece(piece)

        try:
            end = answer_or_stop(self._chat_server, self._conversation.body(), show, stoppable=self._screen.is_terminal)
        except AnswerFailed as fault:
            if pieces:
                self._screen.end(None)
            self._fail(fault.message)
        else:
            self._screen.end(end)
        self._conversation.answer("".join(pieces))

    def _save(self, path: str) -> None:
        text = json.dumps(self._conversation.document(), indent=2, ensure_ascii=False) + "\n"
        try:
            with Path(path).expanduser().open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            self._fail(f"cannot write to {path}: {error.strerror}")
        else:
            self._screen.note(f"written to {path}")


def answer_or_stop(
    server: ChatServer, body: dict[str, object], show: Callable[[str], None], *, stoppable: bool
) -> AnswerEnd | None:
    """Get one answer; None if Ctrl-C stopped it. Raises `AnswerFailed`."""
    return trio.run(partial(_answer_or_stop, partial(stream_answer, server, body, show), stoppable))


async def _answer_or_stop(ask: Callable[[], Awaitable[AnswerEnd]], stoppable: bool) -> AnswerEnd | None:
    end, failure = None, None
    with trio.open_signal_receiver(signal.SIGINT) if stoppable else nullcontext() as signals:
        async with trio.open_nursery() as nursery:
            if signals is not None:
                nursery.start_soon(_cancel_at_signal, signals, nursery.cancel_scope)
            try:
                end = await ask()
            except AnswerFailed as fault:
                failure = fault
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return end


async def _cancel_at_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    await anext(signals)
    scope.cancel()
