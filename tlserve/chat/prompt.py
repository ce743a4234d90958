"""Turns -> prompt ids.

Owns the steps from a conversation to the model's input: mark the users' strings, render, encode. The steps themselves are in
`tlserve.chat.templates` (marks and rendering) and `tlserve.text` (encoding).

The control tokens of a prompt are those of the template, and one BOS if the vocabulary needs one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from tlserve.chat.dialect import FROM_NOTHING, USUAL_FORM, Opening, TurnForm
from tlserve.chat.messages import Turn, TurnCall
from tlserve.chat.templates.marks import choose_mark, insert_marks, marker_for
from tlserve.chat.templates.template import Clock, Template, local_time
from tlserve.chat.tool_prompt import Tools, with_calls_as_text, with_tools_described
from tlserve.errors import ClientError
from tlserve.text.tokenizer import Tokenizer, with_bos

_OPENING_CHARS = 256
_TOOL_VARIABLES = ("tools", "xml_tools")
"""The names under which templates read the tools, the usual name first."""


@attrs.frozen
class Prompt:
    """The ids that the model reads, the rendered text that they encode, and the text that the answer continues."""

    ids: tuple[int, ...]
    text: str
    opening: Opening = FROM_NOTHING


@attrs.frozen(kw_only=True)
class Rendering:
    """The options for rendering turns.

    `variables` are further names for the template, some of them from the client. `continue_final`: the last turn is left open.
    """

    form: TurnForm = USUAL_FORM
    tools: Tools = ()
    add_generation_prompt: bool = True
    continue_final: bool = False
    variables: Mapping[str, object] = attrs.field(factory=dict)


USUAL_RENDERING = Rendering()


def encode_chat(
    template: Template,
    tokenizer: Tokenizer,
    turns: Sequence[Turn],
    rendering: Rendering = USUAL_RENDERING,
    *,
    clock: Clock = local_time,
) -> Prompt:
    """Render `turns` and encode the text. Raises ClientError if the template refuses the turns or fails."""
    turns, tools = _placed(template, turns, rendering)
    turns = [_formed(turn, rendering.form) for turn in turns]
    variables = {**rendering.variables, **tools}
    marks = _choose_marks({*_turn_strings(turns), *_strings(variables)}, template, tokenizer, rendering)
    marked = turns
    if marks.mark:
        marked = [_marked_turn(turn, marks.insert) for turn in turns]
        variables = _marked(variables, marks.insert)
    messages = [_message(turn, rendering.form) for turn in _ended(marked, marks.end)]
    own = {
        "tools": None,
        "add_generation_prompt": rendering.add_generation_prompt and not marks.end,
        **_frame(tokenizer),
    }
    text = _rendered(template, {**own, **variables, "messages": messages}, clock, marks)
    ids = with_bos(tokenizer, tokenizer.encode_with_specials(text, mark=marks.mark))
    text = _without(text, marks.mark)
    return Prompt(tuple(ids), text, _opening(text, turns, rendering))


@attrs.frozen
class _Marks:
    """The marks of one prompt: `mark` goes to the `places` of each string, `end` to the end of a message to be continued."""

    mark: str
    end: str
    places: Mapping[str, Sequence[int]]

    def insert(self, text: str) -> str:
        return insert_marks(text, self.places.get(text, ()), self.mark)


def _choose_marks(strings: set[str], template: Template, tokenizer: Tokenizer, rendering: Rendering) -> _Marks:
    marker = marker_for(frozenset(tokenizer.special_tokens))
    places = {text: found for text in strings if (found := marker.places(text))}
    taken = [*strings, template.source, *tokenizer.special_tokens]
    mark = choose_mark(taken) if places else ""
    return _Marks(mark, choose_mark([*taken, mark]) if rendering.continue_final else "", places)


def _rendered(template: Template, variables: Mapping[str, object], clock: Clock, marks: _Marks) -> str:
    """Return the rendered text up to the end of a message to be continued; an error message has no marks in it."""
    try:
        text = template.render(variables, clock=clock, mark=marks.mark)
    except ClientError as error:
        words = _without(_without(error.message, marks.mark), marks.end)
        raise ClientError(words, param=error.param, code=error.code) from error
    return _cut(text, marks.end)


def _placed(
    template: Template, turns: Sequence[Turn], rendering: Rendering
) -> tuple[Sequence[Turn], Mapping[str, object]]:
    """Put the tools where the template has a place for them: in a variable, or else as text in the system turn."""
    if "tool_calls" not in template.source:
        turns = list(map(with_calls_as_text, turns))
    if not rendering.tools:
        return turns, {}
    for name in _TOOL_VARIABLES:
        if name in template.variables:
            return turns, {name: list(rendering.tools)}
    return with_tools_described(turns, rendering.tools), {}


def _ended(turns: Sequence[Turn], end: str) -> Sequence[Turn]:
    """Return the turns with `end` at the end of the last one's text."""
    return [*turns[:-1], attrs.evolve(turns[-1], text=turns[-1].text + end)] if end else turns


def _cut(text: str, end: str) -> str:
    """Return the text up to the last `end`."""
    if not end:
        return text
    before, found, _ = text.rpartition(end)
    if not found:
        raise ClientError(
            "the model's chat template does not print the message to be continued",
            param="continue_final_message",
        )
    return _without(before, end)


def _opening(text: str, turns: Sequence[Turn], rendering: Rendering) -> Opening:
    """Return the text that the answer continues: only the template's text after the last turn, never a client's text."""
    last = turns[-1].text if turns else ""
    if rendering.continue_final:
        return Opening(begun=last)
    if last.strip() and text.rstrip().endswith(last.strip()):
        return FROM_NOTHING
    return Opening(template=text[-_OPENING_CHARS:])


def encode_completion(tokenizer: Tokenizer, text: str, *, specials: bool = True) -> tuple[int, ...]:
    """Encode a raw prompt, with its special tokens unless `specials` is false, and with one BOS if the model needs it."""
    return tuple(with_bos(tokenizer, tokenizer.encode_with_specials(text) if specials else tokenizer.encode(text)))


def _turn_strings(turns: Sequence[Turn]) -> Iterator[str]:
    """Yield the strings of clients. Roles are not among them: they are fixed, and a template may make them control tokens."""
    for turn in turns:
        yield from filter(None, (turn.text, turn.name, turn.tool_call_id, turn.reasoning))
        for call in turn.calls:
            yield from _strings((call.id, call.name, call.arguments))


def _formed(turn: Turn, form: TurnForm) -> Turn:
    """Return the turn with its calls in the form of the family's template."""
    if turn.tool_call_id is not None:
        turn = attrs.evolve(turn, tool_call_id=form.call_id(turn.tool_call_id))
    if not turn.calls:
        return turn
    return attrs.evolve(turn, calls=tuple(_formed_call(call, form) for call in turn.calls))


def _formed_call(call: TurnCall, form: TurnForm) -> TurnCall:
    arguments = call.arguments
    if form.arguments_as_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return attrs.evolve(call, id=form.call_id(call.id), arguments=arguments)


def _marked_turn(turn: Turn, mark: Callable[[str], str]) -> Turn:
    calls = (TurnCall(mark(call.id), mark(call.name), _marked(call.arguments, mark)) for call in turn.calls)
    return attrs.evolve(
        turn,
        text=mark(turn.text),
        name=turn.name and mark(turn.name),
        tool_call_id=turn.tool_call_id and mark(turn.tool_call_id),
        reasoning=turn.reasoning and mark(turn.reasoning),
        calls=tuple(calls) if turn.calls else (),
    )


def _message(turn: Turn, form: TurnForm) -> dict[str, object]:
    content = None if form.null_content and turn.calls and not turn.text else turn.text
    message: dict[str, object] = {"role": turn.role.value, "content": content}
    optional = {"name": turn.name, "tool_call_id": turn.tool_call_id, "reasoning_content": turn.reasoning}
    message |= {name: value for name, value in optional.items() if value is not None}
    return message | {"tool_calls": list(map(_call_message, turn.calls))} if turn.calls else message


def _call_message(call: TurnCall) -> dict[str, object]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _strings(value: object) -> Iterator[str]:
    """Yield every string in a tree of lists and mappings, including the names."""
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
    """Return the spellings of BOS and EOS for the template to print."""
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    return {
        name: "" if i is None else tokenizer.token_spelling(i).decode("utf-8", "replace") for name, i in ids.items()
    }


def _without(text: str, mark: str) -> str:
    return text.replace(mark, "") if mark else text
