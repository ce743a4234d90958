"""What a compiled chat template calls instead of Python's operators: the same results, counted.

Owns the operations that templates use most, each with a short way for the types that it usually gets: strings, and the lists and
mappings of a request. Everything else takes jinja2's own way, with every value weighed (`limits`). An operation whose time does
not depend on the sizes of its values is not counted here: its block pays for it (`compiler`).

Knows nothing of the syntax of templates, or of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from jinja2.runtime import LoopContext
from jinja2.utils import Namespace, missing

from tlserve.chat.templates import limits
from tlserve.chat.templates.limits import (
    BUDGET,
    CHARS_PER_WORK,
    COPIED_CHARS_PER_WORK,
    MEMBERS_PER_WORK,
    SLOW_CHARS_PER_WORK,
)
from tlserve.chat.templates.origin import OriginText, plain_text
from tlserve.chat.templates.origin_jinja import OriginEnvironment

TEXTS = frozenset({str, OriginText})
"""The types of a string. A text of another type, such as the result of the filter `safe`, takes the long way."""

_SMALL = frozenset({bool, int, float, type(None)})
_LOOP_NAMES = frozenset(
    {"index", "index0", "first", "last", "length", "previtem", "nextitem", "revindex", "revindex0", "depth", "depth0"}
)
_SHORT_CHARS = 256
_NEAR_ZERO = 1 << 62


# --- methods


def _starts(method: Callable[..., bool]) -> Callable[..., bool]:
    def starts(text: str, wanted: Any) -> bool:
        if type(wanted) not in TEXTS or len(wanted) > _SHORT_CHARS:
            limits.compared(wanted)
        return method(text, wanted)

    return starts


def _whole(name: str) -> Callable[..., str]:
    """Return the method `name`, which reads the whole text and makes one that is hardly longer."""
    plain, keeping = getattr(str, name), getattr(OriginText, name)

    def method(text: str) -> Any:
        return keeping(text) if type(text) is OriginText else plain(text)

    def whole(text: str) -> str:
        if len(text) < CHARS_PER_WORK:
            return str(method(text))
        made = plain(text)
        is_slow = len(made) != len(text)  # then each character is looked at for its letter
        BUDGET.get().spend(len(text) // (SLOW_CHARS_PER_WORK if is_slow else CHARS_PER_WORK))
        return str(method(text))

    return whole


def _stripped(name: str) -> Callable[..., str]:
    plain, keeping = getattr(str, name), getattr(OriginText, name)

    def stripped(text: str, chars: Any = None) -> str:
        if len(text) >= CHARS_PER_WORK:
            BUDGET.get().spend(len(text) // CHARS_PER_WORK)
            limits.charge_strip(text, chars)
        made: str = keeping(text, chars) if type(text) is OriginText else plain(text, chars)
        return made

    return stripped


def _split(text: str, sep: Any = None, most: Any = -1) -> list[str]:
    limits.charge_method(text, "split", (sep, most))
    return text.split(sep, most) if type(text) is OriginText else text.split(_plain(sep), most)


def _replaced(text: str, old: Any, new: Any, most: Any = -1) -> str:
    limits.charge_method(text, "replace", (old, new, most))
    if type(old) in TEXTS and type(new) in TEXTS and type(most) is int:
        limits.check_weight(limits.replaced_weight(text, old, new, most))
    return (text if type(text) is OriginText else OriginText(text)).replace(old, new, most)


def _plain(value: Any) -> Any:
    return plain_text(value) if type(value) is OriginText else value


TEXT_METHODS: Mapping[str, tuple[Callable[..., Any], int]] = {
    "startswith": (_starts(str.startswith), 1),
    "endswith": (_starts(str.endswith), 1),
    "strip": (_stripped("strip"), 1),
    "lstrip": (_stripped("lstrip"), 1),
    "rstrip": (_stripped("rstrip"), 1),
    "lower": (_whole("lower"), 0),
    "upper": (_whole("upper"), 0),
    "split": (_split, 2),
    "replace": (_replaced, 3),
}
"""Methods of strings that do not need jinja2's way of a call: name -> the function, and how many arguments it can have."""

MAPPING_METHODS: Mapping[str, Callable[..., Any]] = {"items": dict.items, "keys": dict.keys, "values": dict.values}
"""Methods of mappings without arguments, whose time does not depend on the size."""


# --- operations


class CountedEnvironment(OriginEnvironment):
    """An environment with the operations that `compiler` writes into the code of a template."""

    concat = staticmethod(limits.joined)
    measured = staticmethod(limits.measured)
    budget = staticmethod(BUDGET.get)

    texts = TEXTS
    text_methods = TEXT_METHODS

    def member(self, obj: Any, name: str) -> Any:
        """Return `obj.name`; the name is public, and no attribute of a mapping."""
        kind = type(obj)
        if kind is dict:
            try:
                return obj[name]
            except KeyError:
                return self.undefined(obj=obj, name=name)
        if kind is LoopContext and name in _LOOP_NAMES:
            return getattr(obj, name)
        if kind is Namespace:
            value = getattr(obj, name, missing)
            if value is not missing and not callable(value):
                return value
        return self.getattr(obj, name)

    def item(self, obj: Any, key: Any) -> Any:
        """Return `obj[key]`."""
        if type(obj) in (dict, list) and type(key) in (str, int, OriginText):
            try:
                return obj[key]
            except (LookupError, TypeError):
                pass
        return self.getitem(obj, key)

    def looped(self, values: Any) -> Any:
        """Return what a loop goes through; the block of the loop pays for each round."""
        return values if type(values) in (list, dict, str, OriginText) else limits.measured(values)

    def filtered(self, values: Any) -> Any:
        """Return what a loop with a condition goes through, whose block pays only for some of the rounds."""
        values = values if type(values) in (list, dict, str, OriginText, range) else list(values)
        limits.check_count(len(values))
        BUDGET.get().spend(len(values))
        return values

    def sliced(self, values: Any) -> Any:
        """Return a slice that was made, after it is charged: its members are those of a value that was weighed."""
        if type(values) in TEXTS:
            if len(values) > COPIED_CHARS_PER_WORK:
                BUDGET.get().spend(len(values) // COPIED_CHARS_PER_WORK)
            return values
        if type(values) is list:
            BUDGET.get().spend(len(values) // MEMBERS_PER_WORK)
            return values
        return limits.measured(values)

    def compared(self, value: Any) -> Any:
        """Return an operand of a comparison, charged for all that can be read of it."""
        kind = type(value)
        if kind in _SMALL or (kind in TEXTS and len(value) < CHARS_PER_WORK):
            return value
        return limits.compared(value)

    def contains(self, value: Any, values: Any) -> bool:
        """Return `value in values`, charged before the search."""
        if type(value) in TEXTS and len(value) < _SHORT_CHARS:
            kind = type(values)
            if kind is dict:
                return value in values
            if kind in TEXTS:
                if len(values) >= CHARS_PER_WORK:
                    BUDGET.get().spend(len(values) // CHARS_PER_WORK)
                    limits.charge_search(values, value)
                return value in values
        limits.compared(value)
        limits.charge_search(limits.compared(values), value)
        return value in values

    # --- sums and texts

    def added(self, *values: Any) -> Any:
        """Return the sum of `values`, added from the left; at least one of them is probably a text."""
        for value in values:
            if type(value) is not OriginText and type(value) is not str:
                return reduce(self._plus, values)
        return limits.joined(values)

    def added_parts(self, *values: Any) -> tuple[str, ...]:
        """Return texts that come to the sum of `values`, to be written."""
        for value in values:
            if type(value) is not OriginText and type(value) is not str:
                return (self.text(reduce(self._plus, values)),)
        return values

    def joined(self, *values: Any) -> Any:
        """Return `a ~ b ~ ...`."""
        return limits.joined(self.joined_parts(*values))

    def joined_parts(self, *values: Any) -> tuple[str, ...]:
        """Return texts that come to `a ~ b ~ ...`, to be written."""
        for value in values:
            if type(value) is not OriginText and type(value) is not str:
                return tuple(map(self.text, values))
        return values

    def text(self, value: Any) -> Any:
        """Return the text of a value that is written."""
        if type(value) is OriginText or type(value) is str:
            return value
        if type(value) not in _SMALL:
            BUDGET.get().spend(1 + limits.weigh(value) // CHARS_PER_WORK)
        return str(value)

    def _plus(self, left: Any, right: Any) -> Any:
        return self.plus(left, right)

    def plus(self, left: Any, right: Any) -> Any:
        """Return `left + right`."""
        if type(left) is int and type(right) is int:
            total = left + right
            return total if -_NEAR_ZERO < total < _NEAR_ZERO else limits.measured(total)
        if type(left) is list and type(right) is list:
            return limits.added_lists(left, right)
        return limits.measured(left + right, COPIED_CHARS_PER_WORK)

    def minus(self, left: Any, right: Any) -> Any:
        """Return `left - right`."""
        if type(left) is int and type(right) is int:
            total = left - right
            return total if -_NEAR_ZERO < total < _NEAR_ZERO else limits.measured(total)
        return limits.measured(left - right)
