"""The prompt of a chat, and the turns that are left out where it is too long.

Owns the rule which turns go: the oldest first, up to a turn of the user, so that no result of a call stays without its call. The
turns of the system before the conversation and the last turn of the user stay. Source: the public reference, `truncation`.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from tlserve.api.chat_request import ChatRequest
from tlserve.chat.messages import Role
from tlserve.chat.prompt import Prompt, Rendering, encode_chat, render_chat
from tlserve.chat.served_model import Served
from tlserve.chat.templates.origin import plain_text
from tlserve.chat.thinking import template_variables
from tlserve.errors import ContextLengthExceeded
from tlserve.text.tokenizer import spelling_of

ANSWER_SHARE = 4
"""A prompt that was too long leaves this part of the context for the answer: a quarter."""


def encode_prompt(
    served: Served, request: ChatRequest, check_characters: Callable[[int], None] = lambda _: None
) -> Prompt:
    """Render the turns by the model's template and encode them; control tokens come only from the template.

    `check_characters` gets the length of the rendered text before it is encoded.
    """
    return encode_chat(
        served.template,
        served.tokenizer,
        request.messages,
        _rendering(served, request),
        check_characters=check_characters,
    )


def render_prompt(served: Served, request: ChatRequest) -> str:
    """Return the text of the prompt. BOS is not at its beginning if it is added when the text is encoded, as by completions."""
    rendered = render_chat(served.template, served.tokenizer, request.messages, _rendering(served, request))
    text = plain_text(rendered.text)
    bos = spelling_of(served.tokenizer, served.tokenizer.bos_id) if served.tokenizer.add_bos else ""
    return text.removeprefix(bos)


def _rendering(served: Served, request: ChatRequest) -> Rendering:
    return Rendering(
        form=served.dialect.form,
        tools=request.tools.shown,
        add_generation_prompt=request.add_generation_prompt,
        continue_final=request.continue_final,
        variables=template_variables(served.template, request.thinking),
    )


def encode_truncated(
    served: Served, request: ChatRequest, context_tokens: int, check_characters: Callable[[int], None]
) -> tuple[ChatRequest, Prompt]:
    """Return the request with the turns that fit, and its prompt. Nothing is left out if the whole prompt fits.

    Else the answer gets the tokens that it is allowed, a quarter of the context at most. Raises ContextLengthExceeded if the
    turns that must stay do not fit.
    """
    space = min(request.options.max_tokens or context_tokens, context_tokens // ANSWER_SHARE)
    most = context_tokens - 1
    for shorter in _shorter(request):
        try:
            prompt = encode_prompt(served, shorter, check_characters)
        except ContextLengthExceeded:
            prompt = None
        if prompt is not None and len(prompt.ids) <= most:
            return shorter, prompt
        most = context_tokens - space
    return shorter, encode_prompt(served, shorter, check_characters)


def _shorter(request: ChatRequest) -> list[ChatRequest]:
    """Return the request with fewer and fewer turns."""
    turns = request.messages
    head = next((place for place, turn in enumerate(turns) if turn.role is not Role.SYSTEM), len(turns))
    begins = [place for place in range(head + 1, len(turns)) if turns[place].role is Role.USER]
    return [request, *(attrs.evolve(request, messages=(*turns[:head], *turns[place:])) for place in begins)]
