"""The lines that begin with a slash, and what each does to the conversation.

Owns the table of commands and their words. Decides only: what is to be done outside the conversation is returned.
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
    """Tell the user something; `wrong` if the line was not understood."""

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
    """A row: how it is written, what it does, and the function that does it with the rest of the line."""

    usage: str
    about: str
    do: Callable[[Conversation, str], Outcome]


def take_line(conversation: Conversation, line: str) -> Outcome | None:
    """Do what `line` says; None for an empty one. Two slashes begin a question that begins with one."""
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
    hint = f"did you mean /{close[0]}?" if close else "/help lists them"
    return Note(f"there is no command /{name}; {hint}", wrong=True)


def _help(_conversation: Conversation, _rest: str) -> Note:
    rows = [f"  {command.usage:<20} {command.about}" for command in COMMANDS.values()]
    return Note("\n".join([*rows, "  //...                a question that begins with a slash"]))


def _clear(conversation: Conversation, _rest: str) -> Note:
    conversation.clear()
    return Note("the conversation begins anew")


def _system(conversation: Conversation, text: str) -> Note:
    conversation.system = text
    return Note("the system text is set" if text else "there is no system text any more")


def _set(conversation: Conversation, rest: str) -> Note:
    name, _, value = rest.partition(" ")
    if not name:
        return Note(_shown(conversation))
    if name in OWN_FIELDS:
        return Note(f"{name} is not a parameter; /system, /model and the turns themselves make it", wrong=True)
    if not value.strip():
        conversation.options.pop(name, None)
        return Note(f"{name} is the server's default again")
    conversation.options[name] = _value(value.strip())
    return Note(f"{name} is {json.dumps(conversation.options[name], ensure_ascii=False)}")


def _shown(conversation: Conversation) -> str:
    rows = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in conversation.options.items()]
    return "\n".join(rows) or "every parameter is the server's default"


def _value(text: str) -> object:
    """Return a JSON value where the text is one, else the text itself."""
    try:
        value: object = json.loads(text)
    except ValueError:
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
        return Note("there is no question to ask again", wrong=True)
    conversation.ask(question)
    return Ask()


def _undo(conversation: Conversation, _rest: str) -> Note:
    question = conversation.withdraw()
    return Note("there is nothing to take back" if question is None else f"taken back: {question[:60]}")


def _save(_conversation: Conversation, path: str) -> Outcome:
    return Save(path) if path else Note("say where to: /save FILE", wrong=True)


COMMANDS = {
    "help": ChatCommand("/help", "show this", _help),
    "clear": ChatCommand("/clear", "forget the conversation; system text and parameters stay", _clear),
    "system": ChatCommand("/system TEXT", "tell the model what it is; without TEXT: nothing", _system),
    "set": ChatCommand("/set NAME VALUE", "a parameter, as /set temperature 0.7; without VALUE: its default", _set),
    "seed": ChatCommand("/seed N", "the same question gets the same answer; without N: a new seed each time", _seed),
    "model": ChatCommand("/model NAME", "ask another model of the server", _model),
    "retry": ChatCommand("/retry", "ask the last question again", _retry),
    "undo": ChatCommand("/undo", "take back the last question and its answer", _undo),
    "save": ChatCommand("/save FILE", "write the conversation as a request that curl can send", _save),
    "quit": ChatCommand("/quit", "end; so does Ctrl-D", lambda _conversation, _rest: Quit()),
    "exit": ChatCommand("/exit", "end", lambda _conversation, _rest: Quit()),
}
