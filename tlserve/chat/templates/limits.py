"""The limits of one rendering of a chat template, and how its use is counted.

Owns the figures and the arithmetic: the weight of a value, the work of a rendering, the characters written. A template comes
with a model and is not trusted. Time is counted in work, not in seconds, so that the same request always has the same result.

Knows nothing of jinja2: `tlserve.chat.templates.sandbox` calls this at every place where a template computes.
"""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from contextvars import ContextVar
from typing import Any

from tlserve.chat.templates.origin import concat

MAX_SOURCE_CHARS = 1 << 20
MAX_WEIGHT = 1 << 23
MAX_WRITTEN_CHARS = 1 << 23
MAX_WORK = 1_000_000
MAX_COUNT = 100_000
MAX_INT_BITS = 4096
MEMBER_WEIGHT = 64
CHARS_PER_WORK = 64
COPIED_CHARS_PER_WORK = 1024
SLOW_CHARS_PER_WORK = 4
COUNTS_PER_WORK = 16
MEMBERS_PER_WORK = 16
SEARCHED_PER_WORK = 512
WORK_PER_PART = 4
_LONG_NUMBER = re.compile(r"\d{5,}")
_LONG_PERCENT = re.compile(r"%[^a-zA-Z%]*(\*|\d{5,})")
_PERCENT_NAME = re.compile(r"%\([^()%]{0,200}\)")
_WIDTH_CHARS = 10_000


class TemplateLimit(Exception):
    """The template exceeded a limit of its rendering."""


class Budget:
    """The work that one rendering has left.

    `known` has the weights of lists and mappings that were weighed, and these themselves, so that their ids stay unique.
    Templates cannot change them.
    """

    __slots__ = ("_work", "known")

    def __init__(self) -> None:
        self._work = MAX_WORK
        self.known: dict[int, tuple[int, object]] = {}

    def spend(self, work: int) -> None:
        """Use `work` units; raises TemplateLimit if fewer are left."""
        self._work -= work
        if self._work < 0:
            raise TemplateLimit("it takes too many steps")


BUDGET: ContextVar[Budget] = ContextVar("template_budget")


def check_weight(weight: int) -> None:
    """Refuse a value of more than MAX_WEIGHT, before or after it is made."""
    if weight > MAX_WEIGHT:
        raise TemplateLimit("it makes a value that is too large")


def weigh(value: Any) -> int:
    """Return the weight of `value`: its characters, and MEMBER_WEIGHT for each member; a shared member counts each time.

    Charges one step for each member that it visits, once for each container. Raises TemplateLimit above MAX_WEIGHT.
    """
    if isinstance(value, str):
        check_weight(len(value))
        return len(value)
    return _weight(value, BUDGET.get())[0]


def _weight(value: Any, budget: Budget) -> tuple[int, bool]:
    """Return the weight of a value, and whether it stays: a namespace can change, and so can what it is in."""
    found = budget.known.get(id(value))
    if found is not None:
        return found[0], True
    members = _members(value)
    if not members:
        return _own_weight(value), not _is_namespace(value)
    budget.spend(len(members))
    weight, stays = MEMBER_WEIGHT * len(members), not _is_namespace(value)
    for member in members:
        if isinstance(member, str):
            weight += len(member)
        else:
            more, member_stays = _weight(member, budget)
            weight += more
            stays = stays and member_stays
        if weight > MAX_WEIGHT:
            break
    check_weight(weight)
    if stays:
        budget.known[id(value)] = (weight, value)
    return weight, stays


def _is_namespace(value: Any) -> bool:
    return type(value).__name__ == "Namespace"


def _members(value: Any) -> Collection[Any]:
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    inner = getattr(value, "_Namespace__attrs", None) if _is_namespace(value) else None
    return inner.values() if isinstance(inner, dict) else ()


def _own_weight(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, range):
        return MEMBER_WEIGHT * len(value)
    if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
        raise TemplateLimit("it makes a number that is too large")
    return 1


def measured(value: Any, chars_per_work: int = CHARS_PER_WORK) -> Any:
    """Return `value` after charging one step, its members, and its characters; raises TemplateLimit."""
    if isinstance(value, str):
        check_weight(len(value))
        BUDGET.get().spend(1 + len(value) // chars_per_work)
    elif isinstance(value, range):
        check_count(len(value))
        BUDGET.get().spend(1)
    else:
        weigh(value)
        BUDGET.get().spend(1 + len(value) // MEMBERS_PER_WORK if isinstance(value, Collection) else 1)
    return value


def added_lists(left: list[Any], right: list[Any]) -> list[Any]:
    """Return `left + right`, charged before it is made. Its weight is that of both, so that nobody has to visit the members."""
    weight = weigh(left) + weigh(right)
    check_weight(weight)
    budget = BUDGET.get()
    budget.spend((len(left) + len(right)) // MEMBERS_PER_WORK)
    total = left + right
    if all(not values or id(values) in budget.known for values in (left, right)):
        budget.known[id(total)] = (weight, total)
    return total


def check_written(parts: Sequence[str]) -> None:
    """Refuse a rendering whose text would be too long."""
    if sum(map(len, parts)) > MAX_WRITTEN_CHARS:
        raise TemplateLimit("it writes too much text")


def joined(parts: Iterable[str]) -> str:
    """Return the parts as one text, charged before it is made."""
    parts = tuple(parts)
    chars = sum(map(len, parts))
    if chars > COPIED_CHARS_PER_WORK:
        check_weight(chars)
        BUDGET.get().spend(chars // COPIED_CHARS_PER_WORK)
    return concat(parts)


def compared(value: Any) -> Any:
    """Return `value` after charging for everything in it: a comparison can read it to the end."""
    weight = weigh(value)
    BUDGET.get().spend(1 + weight // CHARS_PER_WORK)
    return value


# --- the work of an operation, before it is done ----------------------------------------------------------------------


def charge_search(text: Any, wanted: Any, *, backwards: bool = False) -> None:
    """Charge for a search for `wanted` in `text` as if every place in it nearly matched.

    CPython searches long texts forwards in linear time, and others, as all backwards, in the product of both lengths.
    Source: `fastsearch` in CPython's string library.
    """
    if not isinstance(text, str) or not isinstance(wanted, str) or len(wanted) > len(text):
        return
    chars, places = len(wanted), len(text) - len(wanted) + 1
    is_linear = not backwards and (len(text) >= 30_000 or (len(text) >= 2500 and chars >= 100))
    compared_chars = len(text) * 8 if is_linear else places * chars
    BUDGET.get().spend(max(0, compared_chars // SEARCHED_PER_WORK - len(text) // CHARS_PER_WORK))


def charge_parts(text: Any, wanted: Any = None, most: Any = -1) -> None:
    """Charge for cutting `text` at every `wanted` (None: at whitespace), because the letters of each part are kept."""
    if isinstance(text, str) and (wanted is None or isinstance(wanted, str)):
        parts = text.count(wanted) if wanted is not None else len(str.split(text))
        limited = isinstance(most, int) and 0 <= most < parts
        BUDGET.get().spend(WORK_PER_PART * (most if limited else parts))


def charge_members(values: Any) -> None:
    """Charge for joining `values`, because the letters of each are kept."""
    if isinstance(values, Sized):
        BUDGET.get().spend(WORK_PER_PART * len(values))


def charge_strip(text: Any, chars: Any = None, *_: Any) -> None:
    """Charge for the removal of `chars` at the ends of `text`: each character is looked up among them."""
    if isinstance(text, str) and isinstance(chars, str):
        BUDGET.get().spend(len(text) * len(chars) // SEARCHED_PER_WORK)


def charge_tags(text: str) -> None:
    """Charge for the removal of comments and tags, each of which copies the text."""
    BUDGET.get().spend(text.count("<") * len(text) // SEARCHED_PER_WORK)


def charge_order(values: Any) -> None:
    """Charge for an order of `values`: each is compared with several others."""
    BUDGET.get().spend(weigh(values) // SLOW_CHARS_PER_WORK // 4)


def check_indented(value: Any, indent: int) -> None:
    """Refuse the JSON of `value` if its indents make it too large."""
    weight, steps, open_values = 0, 0, [(value, 1)]
    while open_values:
        one, depth = open_values.pop()
        members = _members(one)
        steps += len(members)
        weight += len(members) * indent * depth
        check_weight(weight)
        open_values += [(member, depth + 1) for member in members if not isinstance(member, str | int | float)]
    BUDGET.get().spend(steps)


def charge_method(owner: Any, name: str, args: tuple[Any, ...]) -> None:
    """Charge for what a method reads of its owner: a call has only its arguments and its result charged otherwise."""
    if isinstance(owner, str):
        BUDGET.get().spend(len(owner) // CHARS_PER_WORK)
        charge = _STR_WORK.get(name)
        if charge is not None and args:
            charge(owner, args[0])
        if name in ("split", "rsplit"):
            charge_parts(owner, *args[:2])
        elif name == "replace":
            charge_parts(owner, args[0] if args else "", *args[2:3])
        elif name == "join":
            charge_members(args[0] if args else ())
        elif name == "splitlines":
            charge_parts(owner, "\n")
    elif isinstance(owner, list | tuple) and name in ("index", "count"):
        compared(owner)


_search_backwards = functools.partial(charge_search, backwards=True)
_STR_WORK: Mapping[str, Callable[[Any, Any], None]] = {
    **dict.fromkeys(("find", "index", "count", "split", "partition", "replace"), charge_search),
    **dict.fromkeys(("rfind", "rindex", "rsplit", "rpartition"), _search_backwards),
    **dict.fromkeys(("strip", "lstrip", "rstrip"), charge_strip),
}


# --- the weight of a result, before an operation makes it -------------------------------------------------------------


def check_product(left: Any, right: Any) -> None:
    """Refuse `left * right` that would be too large."""
    for value, times in ((left, right), (right, left)):
        if isinstance(times, int):
            if isinstance(value, str | bytes | list | tuple):
                check_weight(weigh(value) * max(times, 0) + MEMBER_WEIGHT * max(times, 0))
            elif isinstance(value, int) and value.bit_length() + times.bit_length() > MAX_INT_BITS:
                raise TemplateLimit("it makes a number that is too large")


def check_power(left: Any, right: Any) -> None:
    """Refuse `left ** right` that would be too large."""
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * max(right, 0) > MAX_INT_BITS:
        raise TemplateLimit("it makes a number that is too large")


def check_percent(left: Any, right: Any) -> None:
    """Refuse `left % right` if it formats text with wide fields, or with the same argument too often."""
    if isinstance(left, str):
        pattern = _PERCENT_NAME.sub("%", left)
        if _LONG_PERCENT.search(pattern):
            raise TemplateLimit("it formats a field that is too wide")
        check_weight(len(left) + pattern.count("%") * (weigh(right) + _WIDTH_CHARS))


def check_format(text: str, arguments: Any) -> None:
    """Refuse `text.format(...)` with wide or computed fields, or with the same argument too often."""
    fields = [spec or "" for _, name, spec, _ in string.Formatter().parse(text) if name is not None]
    if any("{" in spec or _LONG_NUMBER.search(spec) for spec in fields):
        raise TemplateLimit("it formats a field that is too wide")
    check_weight(len(text) + len(fields) * (weigh(arguments) + _WIDTH_CHARS))


def check_count(value: Any) -> None:
    """Refuse a count above MAX_COUNT, and charge for a smaller one."""
    if isinstance(value, int):
        if abs(value) > MAX_COUNT:
            raise TemplateLimit("it uses a count that is too large")
        BUDGET.get().spend(abs(value) // COUNTS_PER_WORK)


def joined_weight(separator: str, members: list[Any]) -> int:
    """Return the weight of the joined text."""
    return sum(map(weigh, members)) + len(separator) * len(members)


def replaced_weight(text: str, old: str, new: str, count: int | None = None) -> int:
    """Return the largest weight of the text after the replacement."""
    times = text.count(old) if count is None or count < 0 else min(count, text.count(old))
    return len(text) + times * len(new)


def padded_weight(text: str, width: int, _fill: str = " ") -> int:
    """Return the weight of the padded text."""
    return max(len(text), width)


STR_METHODS: Mapping[str, Callable[..., int]] = {
    "replace": replaced_weight,
    "join": lambda text, members: joined_weight(text, list(members)),
    "center": padded_weight,
    "ljust": padded_weight,
    "rjust": padded_weight,
    "zfill": padded_weight,
    "expandtabs": lambda text, tabsize=8: len(text) + text.count("\t") * tabsize,
}
"""Methods of str whose result can be larger than their arguments: name -> the largest weight of the result."""

REFUSED_STR_METHODS = frozenset({"translate", "maketrans", "encode"})

REFUSED_INT_METHODS = frozenset({"to_bytes", "from_bytes"})
"""Their results can have any length."""
