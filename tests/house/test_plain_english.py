"""Docstrings, comments and pages have none of a few phrases that a native reader stumbles over.

Each is correct word by word, and a translation from another language: it makes a reader stop. `docs/style.md` has more of them,
with what to write instead. Only these few have a pattern that is never wrong about a sentence.
"""

import re

import pytest

from tests.kit.names_in_text import prose_of
from tests.kit.source_tree import CHECKOUT

INSTEAD = {
    r"(?<!\bthere )\b(?:is|are|was|were) no\b(?! (?:longer|one)\b)": "is not a",
    r"\banew\b": "again",
    r"\bany more\b(?! than)": "no longer",
    r"\bfor ever\b": "forever",
    r"\bwhoever\b": "anyone who",
    r"\b(?:this|that|another|every) room\b": "this package",
    r"\bwants (?:a|an|no)\b": "needs a",
    r"\bstands? (?:in|at) the\b": "is in the",
    r"\blies? (?:in|at)\b": "is in",
    r"\b(?:told|tells?) of\b": "reports",
}

SUFFIXES = {".py", ".c", ".h", ".md"}


def places() -> list[str]:
    """Return what is read: everything below tlserve/, docs/, specs/ and tests/, and the pages at the top."""
    found = [path for folder in ("tlserve", "docs", "specs", "tests") for path in (CHECKOUT / folder).iterdir()]
    kept = [path for path in [*found, *CHECKOUT.glob("*.md")] if path.is_dir() or path.suffix in SUFFIXES]
    return sorted(str(path.relative_to(CHECKOUT)) for path in kept)


READ = [place for place in places() if not place.endswith("__pycache__")]


def phrases(text: str) -> list[str]:
    found = (
        (match[0], better) for pattern, better in INSTEAD.items() for match in re.finditer(pattern, text, re.IGNORECASE)
    )
    return [f"{phrase!r}: write {better!r}" for phrase, better in found]


@pytest.mark.parametrize("place", READ)
def test_a_folder_is_in_plain_english(place: str) -> None:
    base = CHECKOUT / place
    paths = sorted(path for path in base.rglob("*") if path.suffix in SUFFIXES) if base.is_dir() else [base]
    found = {str(path.relative_to(CHECKOUT)): phrases(prose_of(path)) for path in paths}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "text",
    [
        "A node is no server.",
        "It is started anew.",
        "It is not heard any more.",
        "It waits for ever.",
        "Whoever asks waits.",
        "nothing outside this room",
        "The row wants a word.",
        "It stands in the head.",
        "The file lies in the cache.",
        "It is told of a loss.",
    ],
)
def test_each_phrase_is_detected(text: str) -> None:
    assert len(phrases(text)) == 1


@pytest.mark.parametrize(
    "text", ["There is no node.", "It is no longer here.", "any more than two", "who wants to read"]
)
def test_ordinary_english_is_not(text: str) -> None:
    assert phrases(text) == []
