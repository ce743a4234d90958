"""The lines that begin with a slash, and what each one does to the conversation.

Owns the table of commands and their texts. It only decides: actions outside the conversation are returned to the caller.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable

import attrs

from tlserve.cli.chat.conversation import OWN_FIELDS, Conversation


@attrs.frozen
class Ask:
    """The conversation ends with a question: get the answer."""


@attrs.frozen
class Note:
    """Show a text to the user; `wrong`: the line was not understood."""

    text: str
    wrong: bool = False


@attrs.frozen
class Save:
    """Write the conversation to a file."""

    path: str


@attrs.frozen
class Quit:
    """End the program."""


Outcome = Ask | Note | Save | Quit


@attrs.frozen
class ChatCommand:
    """A row: its usage, what it does, and the function that is called with the rest of the line."""

    usage: str
    about: str
    do: Callable[[Conversation, str], Outcome]


def take_line(conversation: Conversation, line: str) -> Outcome | None:
    """Apply `line` to the conversation and return what to do next, None for an empty line.

    A line with two slashes is a question that begins with one slash.
    """
    if not line.strip():
        return None
    if line.startswith("//") or not line.startswith("/"):
        conversation.ask(line[1:] if line.startswith("//") else line)
        return Ask()
    name, _, rest = line[1:].strip().partition(" ")
    command = COMMANDS.get(name)
    return _unknown(name) if command is None else command.do(conversation, rest.strip())


def _unknown(name: str) -> Note:
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean /{close[0]}?" if close else "/help lists the commands"
    return Note(f"there is no command /{name}; {hint}", wrong=True)


def _help(_conversation: Conversation, _rest: str) -> Note:
    rows = [f"  {command.usage:<20} {command.about}" for command in COMMANDS.values()]
    return Note("\n".join([*rows, "  //...                a question that begins with a slash"]))


def _clear(conversation: Conversation, _rest: str) -> Note:
    conversation.clear()
    return Note("the conversation is empty")


def _system(conversation: Conversation, text: str) -> Note:
    conversation.system = text
    return Note("the system text is set" if text else "the system text is removed")


def _set(conversation: Conversation, rest: str) -> Note:
    name, _, value = rest.partition(" ")
    if not name:
        return Note(_shown(conversation))
    if name in OWN_FIELDS:
        return Note(f"{name} is not a parameter: it comes from /system, /model and the turns", wrong=True)
    if not value.strip():
        conversation.options.pop(name, None)
        return Note(f"{name} has the server's default again")
    conversation.options[name] = _value(value.strip())
    return Note(f"{name} is {json.dumps(conversation.options[name], ensure_ascii=False)}")


def _shown(conversation: Conversation) -> str:
    rows = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in conversation.options.items()]
    return "\n".join(rows) or "every parameter has the server's default"


def _value(text: str) -> object:
    """Return the text as a JSON value, or the text itself if it is not JSON."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def _seed(conversation: Conversation, rest: str) -> Note:
    return _set(conversation, f"seed {rest}")


def _model(conversation: Conversation, name: str) -> Note:
    conversation.model = name or conversation.model
    return Note(f"the model is {conversation.model}")


def _retry(conversation: Conversation, _rest: str) -> Outcome:
    question = conversation.unanswered or conversation.withdraw()
    if question is None:
        return Note("there is no question to send again", wrong=True)
    conversation.ask(question)
    return Ask()


def _undo(conversation: Conversation, _rest: str) -> Note:
    question = conversation.withdraw()
    return Note("there is nothing to undo" if question is None else f"removed: {question[:60]}")


def _save(_conversation: Conversation, path: str) -> Outcome:
    return Save(path) if path else Note("name a file: /save FILE", wrong=True)


COMMANDS = {
    "help": ChatCommand("/help", "show this", _help),
    "clear": ChatCommand("/clear", "remove all turns; system text and parameters stay", _clear),
    "system": ChatCommand("/system TEXT", "set the system text; without TEXT: remove it", _system),
    "set": ChatCommand(
        "/set NAME VALUE", "set a parameter, such as /set temperature 0.7; without VALUE: its default", _set
    ),
    "seed": ChatCommand(
        "/seed N", "make answers repeat: same question, same answer; without N: a new seed each time", _seed
    ),
    "model": ChatCommand("/model NAME", "use another model of the server", _model),
    "retry": ChatCommand("/retry", "send the last question again", _retry),
    "undo": ChatCommand("/undo", "remove the last question and its answer", _undo),
    "save": ChatCommand("/save FILE", "write the conversation as a request that curl can send", _save),
    "quit": ChatCommand("/quit", "end; so does Ctrl-D", lambda _conversation, _rest: Quit()),
    "exit": ChatCommand("/exit", "end", lambda _conversation, _rest: Quit()),
}
