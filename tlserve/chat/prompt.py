"""Turns -> prompt ids.

Owns the steps from a conversation to the model's input: render, encode. The steps themselves are in `tlserve.chat.templates` and
`tlserve.text`.

The control tokens of a prompt are those of the template, and one BOS if the vocabulary needs one. The template's literals, the
roles, and the spellings of BOS and EOS have the template's letter; everything else is the client's (see
`tlserve.chat.templates.origin`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import attrs

from tlserve.chat.dialect import FROM_NOTHING, USUAL_FORM, Opening, TurnForm
from tlserve.chat.messages import Role, Turn, TurnCall
from tlserve.chat.templates.origin import origin_of, plain_text, template_text, with_origin
from tlserve.chat.templates.template import Clock, Template, local_time
from tlserve.chat.tool_prompt import Tools, with_calls_as_text, with_results_as_text, with_tools_described
from tlserve.errors import ClientError
from tlserve.text.tokenizer import Tokenizer, spelling_of, with_bos

_OPENING_CHARS = 256
_FINAL = "f"
"""The letter of a message to be continued."""
_NOTHING = "\ue000"
"""Ends a message to be continued that is blank, so that a template has something to print. `_cut` removes it."""
_THOUGHT_NAMES = ("reasoning_content", "thinking")
"""The names under which templates read the reasoning of an earlier answer: gpt-oss reads the second."""
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


@attrs.frozen
class RenderedChat:
    """A conversation as text, with the letters of `tlserve.chat.templates.origin`, and the text that the answer continues."""

    text: str
    opening: Opening = FROM_NOTHING


def render_chat(
    template: Template,
    tokenizer: Tokenizer,
    turns: Sequence[Turn],
    rendering: Rendering = USUAL_RENDERING,
    *,
    clock: Clock = local_time,
) -> RenderedChat:
    """Render `turns`. Raises ClientError if the template refuses the turns or fails."""
    template = template.for_tools if rendering.tools else template
    turns, tools = _placed(template, turns, rendering)
    turns = [_formed(turn, rendering.form) for turn in turns]
    own = {
        "tools": None,
        "add_generation_prompt": rendering.add_generation_prompt and not rendering.continue_final,
        **_frame(tokenizer),
    }
    messages = [_message(turn, rendering.form) for turn in turns]
    if rendering.continue_final:
        messages[-1]["content"] = _final_text(turns[-1].text)
    text = template.render({**own, **rendering.variables, **tools, "messages": messages}, clock=clock)
    if rendering.continue_final:
        text = _cut(text, is_blank=not turns[-1].text.strip())
    return RenderedChat(text, _opening(plain_text(text), turns, rendering))


def encode_chat(
    template: Template,
    tokenizer: Tokenizer,
    turns: Sequence[Turn],
    rendering: Rendering = USUAL_RENDERING,
    *,
    clock: Clock = local_time,
    check_characters: Callable[[int], None] = lambda _: None,
) -> Prompt:
    """Render `turns` and encode the text. Raises ClientError if the template refuses the turns or fails.

    `check_characters` gets the number of characters before they are encoded, and can raise ClientError.
    """
    rendered = render_chat(template, tokenizer, turns, rendering, clock=clock)
    plain = plain_text(rendered.text)
    check_characters(len(plain))
    ids = with_bos(tokenizer, tokenizer.encode_with_specials(plain, origin=origin_of(rendered.text)))
    return Prompt(tuple(ids), plain, rendered.opening)


def _placed(
    template: Template, turns: Sequence[Turn], rendering: Rendering
) -> tuple[Sequence[Turn], Mapping[str, object]]:
    """Put the tools where the template has a place for them: in a variable, or else as text in the system turn."""
    if "tool_calls" not in template.source:
        turns = list(map(with_calls_as_text, turns))
        if any(turn.role is Role.TOOL for turn in turns) and not template.takes_results:
            turns = with_results_as_text(turns)
    if not rendering.tools:
        return turns, {}
    for name in _TOOL_VARIABLES:
        if name in template.variables:
            return turns, {name: list(rendering.tools)}
    return with_tools_described(turns, rendering.tools, takes_system=template.takes_system), {}


def _final_text(text: str) -> str:
    """Return the text of a message to be continued, with letters by which `_cut` finds its end; a blank one gets a character."""
    shown = text if text.strip() else text + _NOTHING
    return with_origin(shown, _FINAL * len(shown))


def _cut(text: str, *, is_blank: bool) -> str:
    """Return the rendered text up to the end of the message to be continued."""
    end = origin_of(text).rfind(_FINAL) + 1
    if not end:
        raise ClientError(
            "the model's chat template does not print the message to be continued",
            param="continue_final_message",
        )
    return text[: end - is_blank]


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


def _message(turn: Turn, form: TurnForm) -> dict[str, object]:
    content = None if form.null_content and turn.calls and not turn.text else turn.text
    message: dict[str, object] = {"role": template_text(turn.role.value), "content": content}
    thought = dict.fromkeys(_THOUGHT_NAMES, turn.reasoning)
    optional = {"name": turn.name, "tool_call_id": turn.tool_call_id, **thought}
    message |= {name: value for name, value in optional.items() if value is not None}
    return message | {"tool_calls": list(map(_call_message, turn.calls))} if turn.calls else message


def _call_message(call: TurnCall) -> dict[str, object]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _frame(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the spellings of BOS and EOS for the template to print."""
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    return {name: template_text(spelling_of(tokenizer, token)) for name, token in ids.items()}
