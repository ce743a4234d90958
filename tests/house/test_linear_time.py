"""Every regular expression of the package, and every function that walks through a client's text, takes linear time.

The memory of a match is bounded too: a repeated group that can be taken back keeps a hundred bytes for each time it matched.
"""

from __future__ import annotations

import importlib
import re
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from tests.kit.linear_time import WALK, growth_fault
from tests.kit.pattern_texts import FoundPattern, Hostile, UnknownPattern, hostile_texts, patterns_of, uses_of
from tests.kit.source_tree import modules
from tests.kit.text_walks import WALKS, Walk, walk_texts
from tlserve.chat.dialects.marked_calls import GLM4, MINIMAX_M3
from tlserve.chat.dialects.named_calls import DEEPSEEK_R1
from tlserve.chat.regions.form_regions import head_pattern
from tlserve.chat.regions.nested_tags import nested_tag
from tlserve.chat.regions.tag_region import tag_patterns

pytestmark = pytest.mark.slow

SEARCHES = {"sub", "subn", "split", "findall", "finditer"}
MEMORY_CHARS = 1 << 11
MEMORY_PER_CHAR = 16

M3_MARKS = MINIMAX_M3.calls.arguments
assert M3_MARKS is not None
MADE_AT_RUN_TIME = {
    "tlserve/chat/grammars/lark.py": (r"(<tool_call>|</tool_call>)", {"finditer"}),
    "tlserve/chat/regions/form_regions.py": (head_pattern(DEEPSEEK_R1.calls).pattern, {"fullmatch"}),
    "tlserve/chat/regions/nested_tags.py": (nested_tag(M3_MARKS).pattern, {"finditer"}),
    "tlserve/chat/regions/tag_region.py": (tag_patterns(GLM4.calls).key.pattern, {"match"}),
    "tlserve/chat/regions/python_call.py": (r"[0-9a-fA-F]{4}", {"fullmatch"}),
    "tlserve/responses/json_text.py": (r"[^a-z\t\n]", {"search", "fullmatch"}),
    "tlserve/telemetry/request_counts.py": (re.escape("/v1/models/") + "(?s:.+)", {"fullmatch"}),
    "tlserve/text/special_tokens.py": (r"<(?=\||s)|\[(?=I)", {"finditer"}),
}
"""Patterns whose value is not in the sources: for each module one as it is made, with its methods."""

USED_ELSEWHERE = {
    "tlserve/chat/dialects/mistral.py": {"fullmatch"},
    "tlserve/chat/dialects/recipients.py": {"fullmatch"},
}
"""Modules whose patterns are handed to others, and the methods that those call."""


def all_patterns() -> Iterator[FoundPattern | UnknownPattern]:
    uses = uses_of(modules())
    for module in modules():
        if re.search(r"\bre\.|pattern=", module.text):
            yield from patterns_of(module, vars(importlib.import_module(module.name)), uses)


def cases() -> Iterator[tuple[FoundPattern, str]]:
    """Yield each pattern with each way of using it; all that go through a text are one way."""
    for pattern in all_patterns():
        path = pattern.place.partition(":")[0]
        if isinstance(pattern, UnknownPattern):
            value, made = MADE_AT_RUN_TIME[path]
            pattern = FoundPattern(pattern.place, value, 0, frozenset(made))
        methods = USED_ELSEWHERE.get(path) or pattern.methods
        yield from ((pattern, method) for method in {"finditer" if name in SEARCHES else name for name in methods})


def matcher(pattern: FoundPattern, method: str) -> Callable[[str], object]:
    called = getattr(re.compile(pattern.pattern, pattern.flags), method)
    use = (lambda data: deque(called(data), 0)) if method == "finditer" else called
    return use if isinstance(pattern.pattern, str) else lambda text: use(text.encode("latin-1"))


def pattern_fault(pattern: FoundPattern, method: str) -> str | None:
    texts = hostile_texts(pattern.pattern, pattern.flags)
    fault = growth_fault(matcher(pattern, method), [text.text for text in texts])
    return fault and f"{pattern.place}: {method} of {pattern.pattern!r} takes {fault}"


def memory_fault(pattern: FoundPattern, method: str) -> str | None:
    match = matcher(pattern, method)
    for hostile in hostile_texts(pattern.pattern, pattern.flags):
        text = hostile.text(MEMORY_CHARS)
        tracemalloc.start()
        match(text)
        peak = tracemalloc.get_traced_memory()[1] / len(text)
        tracemalloc.stop()
        if peak > MEMORY_PER_CHAR:
            return f"{pattern.place}: {method} of {pattern.pattern!r} takes {peak:.0f} bytes a character: {hostile}"
    return None


def of(pattern: str, method: str) -> FoundPattern:
    return FoundPattern("here", pattern, 0, frozenset({method}))


def test_every_regular_expression_takes_linear_time() -> None:
    faults = [pattern_fault(*case) for case in cases()]
    assert [fault for fault in faults if fault] == []


def test_every_match_takes_little_memory() -> None:
    faults = [memory_fault(*case) for case in cases() if case[1] in ("match", "fullmatch")]
    assert [fault for fault in faults if fault] == []


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.name)
def test_every_walk_through_text_takes_linear_time(walk: Walk) -> None:
    assert growth_fault(walk.run, [hostile.text for hostile in walk_texts(walk)], WALK) is None


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"(?:\[[^\]]*\]|[^/])*/", "match"),
        (r"(?m)^\s*[\w-]+\s*::=", "search"),
        (r"(a|aa)+$", "match"),
        (r"(?:a?){30}b", "search"),
        (r"\s+$", "finditer"),
        (r"\d*\d*x", "match"),
        (r"(x+x+)+y", "fullmatch"),
        (r"\[.*?\]:", "finditer"),
    ],
)
def test_a_pattern_that_is_not_linear_is_found(pattern: str, method: str) -> None:
    assert pattern_fault(of(pattern, method), method)


def test_a_match_that_keeps_every_repetition_is_found() -> None:
    assert memory_fault(of(r"(?:\r?\n)*", "match"), "match")
    assert memory_fault(of(r"(?:\r?\n)*+", "match"), "match") is None


def test_a_walk_that_is_not_linear_is_found() -> None:
    walk = Walk("quadratic", lambda text: [text[at:].lstrip("(") for at in range(len(text))], ("(",))
    assert growth_fault(walk.run, [Hostile("", "(", "").text], WALK)


def test_patterns_that_are_not_in_the_sources_have_an_example() -> None:
    unknown = {pattern.place.partition(":")[0] for pattern in all_patterns() if isinstance(pattern, UnknownPattern)}
    assert unknown == set(MADE_AT_RUN_TIME)
