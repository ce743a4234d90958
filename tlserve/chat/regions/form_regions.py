"""The record of a form of calls -> the marker of its calls, and what reads them.

Owns which region reads which form. Does not know the families.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

import attrs

from tlserve.chat.dialect import CallForm, Notation, Slot, ToolUse, marks_in
from tlserve.chat.output.markup_reader import OpenRegion
from tlserve.chat.regions.brace_region import BraceRegion
from tlserve.chat.regions.json_regions import JsonRegion, NamedRegion
from tlserve.chat.regions.pythonic_region import PythonicRegion
from tlserve.chat.regions.region import EitherRegion, Region
from tlserve.chat.regions.tag_region import TagRegion, loose

_IN_OBJECT = re.compile(r'\{[^{}]*"[A-Za-z_]+"\s*:\s*"$')
_AS_MEMBER = re.compile(r'\{\s*"$')
_FENCE = re.compile(r"```(?:json)?")
_NAME = r"([^\s<>{}\[\]()\"]{1,256}?)"
Accepts = Callable[[str], bool]
_SLOT = r"[\w.:-]{0,64}"


def regions_of(form: CallForm, tools: ToolUse, *, offered_only: bool = False) -> Mapping[str, OpenRegion]:
    """Return the marker of the calls of `form`, with what opens a region for them; none if they have no marker.

    If `offered_only`, only calls of tools that were offered are calls.
    """
    accepts = tools.schemas.__contains__ if offered_only else bool
    return {form.begin: partial(_opener(form), tools, accepts)} if form.begin else {}


def habit_regions(habits: tuple[str, ...], form: CallForm, tools: ToolUse) -> Mapping[str, OpenRegion]:
    """Return the texts with which small models begin a call without its marker; only tools that were offered are called so."""
    return {habit: partial(_open_habit, habit, form, tools) for habit in habits}


def _open_habit(habit: str, form: CallForm, tools: ToolUse) -> Region:
    accepts = tools.schemas.__contains__
    if form.arguments is None:
        return JsonRegion(habit, "", tools.schemas, accepts)
    inner = _without_marker(habit, form)
    last = "" if inner.end == form.end else form.end
    return TagRegion(habit, inner, tools.schemas, accepts, last=last, is_free=tools.enforced is None)


@lru_cache(maxsize=64)
def _without_marker(habit: str, form: CallForm) -> CallForm:
    first, *more = form.call
    assert isinstance(first, str)
    last = str(more.pop())
    last = last.replace(form.end, "") or last
    return attrs.evolve(form, call=(habit + first.partition(habit)[2], *more, last), begin=habit, end=last.strip())


@lru_cache(maxsize=64)
def spellings_of(form: CallForm) -> frozenset[str]:
    """Return the marks in the texts of a form: what may be a control token inside a call."""
    marks = form.arguments
    around = () if marks is None else attrs.astuple(marks, recurse=False)[1:]
    parts = (*form.before, *form.call, *form.between, *form.after, *around)
    return frozenset(mark for part in parts if isinstance(part, str) for mark in marks_in(part))


@lru_cache(maxsize=64)
def _opener(form: CallForm) -> Callable[[ToolUse, Accepts], Region]:
    if form.arguments is not None:
        return partial(_open_marked, form)
    head = _text_before_name(form)
    if _IN_OBJECT.search(head):
        return partial(_open_objects, form)
    if _AS_MEMBER.search(head):
        return partial(_open_members, form)
    return partial(_open_named, form, head_pattern(form))


def _open_marked(form: CallForm, tools: ToolUse, accepts: Accepts) -> Region:
    assert form.arguments is not None
    if form.arguments.notation is Notation.PYTHON:
        return EitherRegion(form.begin, partial(_choose_listed, form, tools))
    if form.arguments.notation is Notation.BRACES:
        return BraceRegion(form.begin, form.end, form, tools.schemas)
    return TagRegion(form.begin, form, tools.schemas, accepts, is_free=tools.enforced is None)


def _open_objects(form: CallForm, tools: ToolUse, accepts: Accepts) -> Region:
    return JsonRegion(form.begin, form.end, tools.schemas, accepts)


def _open_members(form: CallForm, tools: ToolUse, accepts: Accepts) -> Region:
    return JsonRegion(form.begin, form.end, tools.schemas, accepts, by_member=True)


def _open_named(form: CallForm, head: re.Pattern[str], tools: ToolUse, accepts: Accepts) -> Region:
    return NamedRegion(form.begin, form.end, tools.schemas, head, accepts)


def _choose_listed(form: CallForm, tools: ToolUse, text: str) -> Region | None:
    """Return the region for the form of `text`, or None while that is open: a list has calls in Python or in JSON."""
    inside = text[1:].lstrip()
    if not text or (text[0] == "[" and not inside):
        return None
    if text[0] == "{" or (text[0] == "[" and inside[0] == "{"):
        return JsonRegion(form.begin, form.end, tools.schemas)
    return PythonicRegion(form.begin, tools.schemas, bool, form.end)


def _spelled(parts: tuple[str | Slot, ...]) -> str:
    return "".join(part if isinstance(part, str) else f"\0{part.value}\0" for part in parts)


def _text_before_name(form: CallForm) -> str:
    return _spelled(form.head).partition(f"\0{Slot.NAME.value}\0")[0]


def head_pattern(form: CallForm) -> re.Pattern[str]:
    """Return the pattern of the text between the marker of a call and its arguments; a code fence in it is optional."""
    text = _spelled(form.head).partition(form.begin)[2]
    pieces = []
    for piece in re.split(r"(\0\w+\0|```(?:json)?)", text):
        if piece == f"\0{Slot.NAME.value}\0":
            pieces.append(_NAME)
        elif piece.startswith("\0"):
            pieces.append(_SLOT)
        elif piece == form.omitted and piece:
            pieces.append(f"(?:{loose(piece)})?+")
        else:
            pieces.append(r"(?:```(?:json)?)?\s*+" if _FENCE.fullmatch(piece) else loose(piece))
    return re.compile("".join(pieces))
