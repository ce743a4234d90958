"""The script: talks, their turns, and what a turn expects and answers; read from TOML or JSON, and strict.

Owns the format and the refusals. Does not know requests: `tlserve.mock.match` chooses a turn for one.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from tlserve.config.toml_file import read_toml
from tlserve.errors import SettingsError
from tlserve.mock.patterns import check_pattern, hides

Name = Annotated[str, Meta(min_length=1, pattern=r"^[^/]+$")]
Milliseconds = Annotated[int, Meta(ge=0, le=600_000)]


class Expect(Struct, frozen=True, forbid_unknown_fields=True):
    """What a request must have sent to get the turn; each text is a pattern, and what is left out is not compared."""

    model: str | None = None
    system: str | None = None
    tools: list[str] | None = None
    result: dict[str, str] = {}


class Call(Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a tool; `args` as an object, or as text that is sent as it is."""

    name: Name
    args: dict[str, Any] | str = {}
    id: str = ""


class ScriptError(Struct, frozen=True, forbid_unknown_fields=True):
    """An error instead of an answer, in the shape of the API through which the request came."""

    status: Annotated[int, Meta(ge=400, le=599)]
    message: str = "the script answers this turn with an error"
    code: str | None = None


class ScriptTurn(Struct, frozen=True, forbid_unknown_fields=True):
    """One answer: pieces of thinking and text, then calls; or an error. Times in milliseconds."""

    expect: Expect = Expect()
    think: str | list[str] = []
    say: str | list[str] = []
    calls: list[Call] = []
    finish: Literal["stop", "length"] = "stop"
    first_ms: Milliseconds = 0
    gap_ms: Milliseconds = 0
    error: ScriptError | None = None


class Talk(Struct, frozen=True, forbid_unknown_fields=True):
    """What follows a message of the user that fits `user`: its turns in order, or an echo of the message."""

    name: Name
    user: str
    turn: list[ScriptTurn] = []
    answer: Literal["turns", "echo"] = "turns"


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """All talks; the first one that fits a request answers it."""

    talk: list[Talk] = []


def load_script(path: Path) -> Script:
    """Return the script of a file, JSON if its name ends in `.json`, else TOML; raises `SettingsError` with the place."""
    if path.suffix != ".json":
        return parse_script(read_toml(path), str(path))
    try:
        document = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise SettingsError((f"{path}: cannot be read: {error.strerror or error}",)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError((f"{path}: is not JSON: {error}",)) from None
    return parse_script(document, str(path))


def parse_script(document: object, source: str = "script") -> Script:
    """Return the script that a decoded document describes; raises `SettingsError` with all that is wrong with the talks."""
    try:
        script = msgspec.convert(document, Script)
    except msgspec.ValidationError as error:
        raise SettingsError((f"{source}: {_explained(str(error))}",)) from None
    faults = [*_faults_of_talks(script), *_hidden(script)]
    if faults:
        raise SettingsError(tuple(f"{source}: {fault}" for fault in faults))
    return script


def pieces_of(text: str | list[str]) -> tuple[str, ...]:
    """Return the pieces in which a text is sent: those of a list as they are, those of a string one word each."""
    return tuple(re.findall(r"\s*\S+\s*\Z|\s*\S+|\s+", text)) if isinstance(text, str) else tuple(text)


_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>[^`]*+)`(?: - at `\$\.?(?P<path>[^`]*+)`)?\Z")
_PLACES: dict[str, type[Struct]] = {
    "": Script,
    "talk": Talk,
    "talk.turn": ScriptTurn,
    "talk.turn.expect": Expect,
    "talk.turn.calls": Call,
    "talk.turn.error": ScriptError,
}


def _explained(message: str) -> str:
    """Return a message of the reader in our words: the path first, and for an unknown key the nearest known one."""
    match = _UNKNOWN.match(message)
    if match is None:
        reason, _, place = message.partition(" - at `$.")
        return f"{place.rstrip('`') or 'the document'}: {reason}"
    path = match["path"] or ""
    known = _PLACES[re.sub(r"\[\d+\]", "", path)].__struct_fields__
    close = difflib.get_close_matches(match["key"], known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
    return f"there is no key {(path + '.' + match['key']).lstrip('.')!r}; {hint}"


def _faults_of_talks(script: Script) -> list[str]:
    faults: list[str] = []
    seen: set[str] = set()
    for talk in script.talk:
        if talk.name in seen:
            faults.append(f"two talks have the name {talk.name!r}; give each its own")
        seen.add(talk.name)
        if (talk.answer == "turns") != bool(talk.turn):
            faults.append(f"the talk {talk.name!r} needs either turns or answer = 'echo'")
        for number, turn in enumerate(talk.turn, 1):
            faults += _faults_of_turn(turn, f"{talk.name}/{number}")
        faults += check_pattern(talk.user, f"{talk.name}: user")
    return faults


def _faults_of_turn(turn: ScriptTurn, name: str) -> list[str]:
    expect = turn.expect
    patterns = {"model": expect.model, "system": expect.system} | {f"result.{k}": v for k, v in expect.result.items()}
    faults = [fault for key, text in patterns.items() for fault in check_pattern(text, f"{name}: expect.{key}")]
    if turn.error is not None and (turn.say or turn.think or turn.calls):
        faults.append(f"{name} has an error and an answer; keep one of them")
    return faults


def _hidden(script: Script) -> list[str]:
    """Return the talks that no request can reach, because an earlier one fits each of their messages."""
    return [
        f"the talk {later.name!r} is never reached: {earlier.name!r} before it fits the same messages; put it first"
        for place, later in enumerate(script.talk)
        for earlier in script.talk[:place]
        if hides(earlier.user, later.user)
    ]
