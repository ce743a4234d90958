"""What a request may tell a template about thinking, and what a model can honour of it.

Owns the rules for `enable_thinking`, `reasoning_effort` and further variables of templates, and the words of what cannot be
had. A template says by the names that it reads what it can be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from tlserve.chat.templates.template import Template
from tlserve.errors import ClientError, Refusal

RESERVED = frozenset(
    {
        *("messages", "tools", "add_generation_prompt", "continue_final_message"),
        *("bos_token", "eos_token", "chat_template", "tokenize"),
    }
)
"""Variables that are not the client's to set; the first four have fields of their own."""

NO_SWITCH = "the model's chat template has no switch for thinking"
NO_LEVELS = "the model's chat template knows no levels of reasoning effort"


@attrs.frozen(kw_only=True)
class Thinking:
    """What a request says; `variables` go to the template as they are."""

    enabled: bool | None = None
    effort: str | None = None
    variables: Mapping[str, Any] = attrs.field(factory=dict)


NO_THINKING = Thinking()


def template_variables(template: Template, thinking: Thinking) -> dict[str, Any]:
    """Return the variables for the template.

    Raises ClientError for names that are reserved or said twice, Refusal for what the model cannot do.
    """
    for name in thinking.variables:
        if name in RESERVED:
            raise ClientError(f"chat_template_kwargs cannot set {name}", param="chat_template_kwargs")
    own = {**_effort(template, thinking), **_switch(template, thinking)}
    for name, value in own.items():
        if thinking.variables.get(name, value) != value:
            raise ClientError(f"{name} and chat_template_kwargs.{name} differ; send one of them", param=name)
    return {**thinking.variables, **own}


def unread_variables(template: Template, thinking: Thinking) -> tuple[str, ...]:
    """Return the names of what the template does not look at."""
    return tuple(f"chat_template_kwargs.{name}" for name in thinking.variables if name not in template.variables)


def _effort(template: Template, thinking: Thinking) -> dict[str, Any]:
    effort = thinking.effort
    if effort is None:
        return {}
    if "reasoning_effort" in template.variables:
        return {"reasoning_effort": effort}
    if effort == "none":
        return _switched(template, False, "reasoning_effort")
    raise Refusal(f"reasoning_effort {effort!r} cannot be had: {NO_LEVELS}; leave it out", param="reasoning_effort")


def _switch(template: Template, thinking: Thinking) -> dict[str, Any]:
    return {} if thinking.enabled is None else _switched(template, thinking.enabled, "enable_thinking")


def _switched(template: Template, enabled: bool, param: str) -> dict[str, Any]:
    if "enable_thinking" in template.variables:
        return {"enable_thinking": enabled}
    if enabled == _always_thinks(template):
        return {}
    raise Refusal(f"{param} asks for what the model cannot do: {NO_SWITCH}; leave it out", param=param)


def _always_thinks(template: Template) -> bool:
    return "</think>" in template.source


def can_switch_thinking(template: Template) -> bool | str:
    """Say whether thinking can be switched, or why not."""
    return "enable_thinking" in template.variables or NO_SWITCH


def can_take_effort(template: Template) -> bool | str:
    """Say whether a reasoning effort makes a difference, or why not."""
    takes = {"reasoning_effort", "enable_thinking"} & template.variables
    return bool(takes) or f"{NO_SWITCH}, and knows no levels"


def can_tell_levels(template: Template) -> bool | str:
    """Say whether levels of effort other than none are told apart, or why not."""
    return "reasoning_effort" in template.variables or NO_LEVELS
