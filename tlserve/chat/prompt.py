"""Turns -> prompt ids.

Owns the one way from a conversation to the model's input: mark the users' strings, render, encode. Refuses to know how marks
are placed (`marks`), how templates run (`templates`) and how text is encoded (`tlserve.text`).

The control tokens of a prompt are those that the template put there, and one BOS where the vocabulary wants one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs

from tlserve.chat.marks import choose_mark, insert_marks, marker_for
from tlserve.chat.messages import Turn
from tlserve.chat.templates import Clock, Template, local_time
from tlserve.errors import ClientError
from tlserve.text.tokenizer import Tokenizer, with_bos

_NO_VARIABLES: Mapping[str, object] = MappingProxyType({})


@attrs.frozen
class Prompt:
    """What the model reads, and the rendered text that it stands for."""

    ids: tuple[int, ...]
    text: str


def encode_chat(
    template: Template,
    tokenizer: Tokenizer,
    turns: Sequence[Turn],
    *,
    add_generation_prompt: bool = True,
    variables: Mapping[str, object] = _NO_VARIABLES,
    clock: Clock = local_time,
) -> Prompt:
    """Render `turns` and encode the text; `variables` are further names for the template, from the client too.

    Raises ClientError for what the template refuses, or fails at.
    """
    strings = {*_turn_strings(turns), *_strings(variables)}
    marker = marker_for(frozenset(tokenizer.special_tokens))
    places = {text: found for text in strings if (found := marker.places(text))}
    mark = choose_mark([*strings, template.source, *tokenizer.special_tokens]) if places else ""
    if mark:

        def with_marks(text: str) -> str:
            return insert_marks(text, places.get(text, ()), mark)

        turns = [_marked_turn(turn, with_marks) for turn in turns]
        variables = _marked(variables, with_marks)
    own = {"add_generation_prompt": add_generation_prompt, **_frame(tokenizer)}
    try:
        text = template.render({**own, **variables, "messages": list(map(_message, turns))}, clock=clock, mark=mark)
    except ClientError as error:
        raise ClientError(_without(error.message, mark), param=error.param, code=error.code) from error
    ids = with_bos(tokenizer, tokenizer.encode_with_specials(text, mark=mark))
    return Prompt(tuple(ids), _without(text, mark))


def encode_completion(tokenizer: Tokenizer, text: str, *, specials: bool = True) -> tuple[int, ...]:
    """Encode a raw prompt, with its special tokens unless `specials` is false, and with one BOS where it is wanted."""
    return tuple(with_bos(tokenizer, tokenizer.encode_with_specials(text) if specials else tokenizer.encode(text)))


def _turn_strings(turns: Sequence[Turn]) -> Iterator[str]:
    """Yield what clients wrote; a role is one of ours, which templates may well make a control token of."""
    for turn in turns:
        yield from filter(None, (turn.text, turn.name, turn.tool_call_id))


def _marked_turn(turn: Turn, mark: Callable[[str], str]) -> Turn:
    return attrs.evolve(
        turn,
        text=mark(turn.text),
        name=turn.name and mark(turn.name),
        tool_call_id=turn.tool_call_id and mark(turn.tool_call_id),
    )


def _message(turn: Turn) -> dict[str, object]:
    message: dict[str, object] = {"role": turn.role.value, "content": turn.text}
    optional = {"name": turn.name, "tool_call_id": turn.tool_call_id}
    return message | {name: value for name, value in optional.items() if value is not None}


def _strings(value: object) -> Iterator[str]:
    """Yield every string in a tree of lists and mappings, names too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield from _strings(key)
            yield from _strings(member)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from _strings(member)


def _marked(value: Any, mark: Callable[[str], str]) -> Any:
    """Return the tree with every string marked."""
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, Mapping):
        return {_marked(key, mark): _marked(member, mark) for key, member in value.items()}
    return [_marked(member, mark) for member in value] if isinstance(value, list | tuple) else value


def _frame(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the spellings of BOS and EOS, which templates print."""
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    return {
        name: "" if i is None else tokenizer.token_spelling(i).decode("utf-8", "replace") for name, i in ids.items()
    }


def _without(text: str, mark: str) -> str:
    return text.replace(mark, "") if mark else text
