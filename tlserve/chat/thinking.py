"""The options for thinking that a request can pass to a template, and which of them a model supports.

Owns the rules for `enable_thinking`, `reasoning_effort` and other variables of templates, and the messages for options that are
not supported. A template supports a variable if it reads that name.
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
"""Variables that a client cannot set here; the first four have fields of their own."""

NO_SWITCH = "the model's chat template has no switch for thinking"
NO_LEVELS = "the model's chat template has no levels of reasoning effort"


@attrs.frozen(kw_only=True)
class Thinking:
    """The options of a request; `variables` go to the template unchanged. The fields are the names of two options there."""

    enabled: bool | None = None
    effort: str | None = None
    variables: Mapping[str, Any] = attrs.field(factory=dict)
    switch_field: str = "enable_thinking"
    effort_field: str = "reasoning_effort"


NO_THINKING = Thinking()


def template_variables(template: Template, thinking: Thinking) -> dict[str, Any]:
    """Return the variables for the template.

    Raises ClientError for names that are reserved or set twice, Refusal for options that the model does not support.
    """
    for name in thinking.variables:
        if name in RESERVED:
            raise ClientError(f"chat_template_kwargs cannot set {name}", param="chat_template_kwargs")
    own = {**_effort(template, thinking), **_switch(template, thinking)}
    for name, value in own.items():
        if thinking.variables.get(name, value) != value:
            raise ClientError(f"{name} and chat_template_kwargs.{name} differ; send only one of them", param=name)
    return {**thinking.variables, **own}


def unread_variables(template: Template, thinking: Thinking) -> tuple[str, ...]:
    """Return the names of the variables that the template does not read."""
    return tuple(f"chat_template_kwargs.{name}" for name in thinking.variables if name not in template.variables)


def _effort(template: Template, thinking: Thinking) -> dict[str, Any]:
    effort = thinking.effort
    if effort is None:
        return {}
    if "reasoning_effort" in template.variables:
        return {"reasoning_effort": effort}
    if effort == "none":
        return _switched(template, thinking.effort_field, enabled=False)
    field = thinking.effort_field
    raise Refusal(f"{field} {effort!r} is not supported: {NO_LEVELS}; leave it out", param=field)


def _switch(template: Template, thinking: Thinking) -> dict[str, Any]:
    return {} if thinking.enabled is None else _switched(template, thinking.switch_field, enabled=thinking.enabled)


def _switched(template: Template, param: str, *, enabled: bool) -> dict[str, Any]:
    if "enable_thinking" in template.variables:
        return {"enable_thinking": enabled}
    if enabled == _always_thinks(template):
        return {}
    raise Refusal(f"{param} is not supported: {NO_SWITCH}; leave it out", param=param)


def _always_thinks(template: Template) -> bool:
    return "</think>" in template.source


def can_switch_thinking(template: Template) -> bool | str:
    """Return whether thinking can be switched on and off, or the reason why not."""
    return "enable_thinking" in template.variables or NO_SWITCH


def can_take_effort(template: Template) -> bool | str:
    """Return whether a reasoning effort has an effect, or the reason why not."""
    takes = {"reasoning_effort", "enable_thinking"} & template.variables
    return bool(takes) or f"{NO_SWITCH}, and no levels of effort"


def can_tell_levels(template: Template) -> bool | str:
    """Return whether levels of effort other than none differ, or the reason why not."""
    return "reasoning_effort" in template.variables or NO_LEVELS
