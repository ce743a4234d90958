"""Chat templates: parsed once when the model loads, rendered for each request.

Owns parsing and rendering, and the class of a failure: a template that cannot be parsed is an error of the model (ModelRefused);
a failed rendering is an error of the request (ClientError), with the template's own message if it has one. Knows nothing of
tokens.

Source: the Hugging Face documentation, "Chat templates".
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import attrs
import jinja2
from jinja2 import meta

from tlserve.chat.templates.limits import BUDGET, MAX_SOURCE_CHARS, Budget, TemplateLimit, check_written
from tlserve.chat.templates.origin import concat
from tlserve.chat.templates.sandbox import CLOCK, ChatEnvironment, TemplateRaised
from tlserve.chat.templates.syntax import find_refusals
from tlserve.errors import ClientError, ModelRefused

DEFAULT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
"""The template of models that have none."""

_PROBE = "a probe of the server"
_PROBE_FRAME = {"bos_token": "", "eos_token": ""}

Clock = Callable[[], datetime]


def local_time() -> datetime:
    """Return the time in the machine's time zone: the time that templates expect."""
    return datetime.now().astimezone()


@functools.cache
def _environment() -> ChatEnvironment:
    return ChatEnvironment()


@attrs.frozen
class Template:
    """A parsed chat template. Safe for use by several threads at once."""

    source: str
    _compiled: jinja2.Template = attrs.field(repr=False, eq=False)
    variables: frozenset[str] = attrs.field(default=frozenset(), eq=False)
    """The names that the template reads and does not set itself: a request can set these."""
    tool_use: Template | None = None
    """The template for requests with tools, if the model's files have one of its own for them."""

    @classmethod
    def parse(cls, source: str) -> Template:
        """Parse `source`; raises ModelRefused with the reason and the line number."""
        if len(source) > MAX_SOURCE_CHARS:
            raise ModelRefused(f"the chat template has more than {MAX_SOURCE_CHARS} characters")
        try:
            tree = _environment().parse(source)
            refusal = next(find_refusals(tree, _environment()), None)
            if refusal is None:
                return cls(source, _environment().from_string(tree), frozenset(meta.find_undeclared_variables(tree)))
        except jinja2.TemplateSyntaxError as error:
            raise ModelRefused(f"the chat template cannot be parsed: {error.message} (line {error.lineno})") from error
        except Exception as error:
            raise ModelRefused(f"the chat template cannot be parsed: {type(error).__name__}: {error}") from error
        raise ModelRefused(f"the chat template cannot be served: {refusal}")

    @property
    def for_tools(self) -> Template:
        """Return the template for requests with tools."""
        return self.tool_use or self

    @functools.cached_property
    def takes_system(self) -> bool:
        """Return whether the template prints a system turn: some have no place for one and raise an exception, or drop it."""
        return self._prints(("system", _PROBE), ("user", "Hi"))

    @functools.cached_property
    def takes_results(self) -> bool:
        """Return whether the template prints the result of a call after an answer without calls."""
        return self._prints(("user", "Hi"), ("assistant", "Hello"), ("tool", _PROBE))

    def _prints(self, *turns: tuple[str, str]) -> bool:
        """Return whether the turn that says `_PROBE` is printed; yes for a template that fails without that turn as well."""
        try:
            return _PROBE in self._rendered(turns)
        except ClientError:
            pass
        try:
            self._rendered([turn for turn in turns if turn[1] != _PROBE])
        except ClientError:  # it needs a variable that the request gives
            return True
        return False

    def _rendered(self, turns: Sequence[tuple[str, str]]) -> str:
        messages = [{"role": role, "content": text} for role, text in turns]
        return self.render({"messages": messages, "add_generation_prompt": True, **_PROBE_FRAME})

    def render(self, variables: Mapping[str, object], *, clock: Clock = local_time) -> str:
        """Return the text for `variables`, with the letters of `tlserve.chat.templates.origin`.

        Raises ClientError, with the template's own sentence if it calls raise_exception.
        """
        try:
            return contextvars.Context().run(self._render, dict(variables), clock)
        except TemplateRaised as error:
            raise ClientError(str(error), param="messages") from error
        except TemplateLimit as error:
            raise ClientError(f"the model's chat template exceeded its limits: {error}", param="messages") from error
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            raise ClientError(
                f"the model's chat template failed on these messages: {reason}", param="messages"
            ) from error

    def _render(self, variables: dict[str, object], clock: Clock) -> str:
        """Render in a context that only this rendering uses."""
        BUDGET.set(Budget())
        CLOCK.set(clock)
        parts = list(self._compiled.root_render_func(self._compiled.new_context(variables)))
        check_written(parts)
        return concat(parts)
