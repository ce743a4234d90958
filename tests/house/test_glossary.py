"""The glossary is sorted, names each word once, and names only modules and classes that exist."""

import re

from tests.house.test_specs import missing_symbols, tree_of
from tests.kit.source_tree import CHECKOUT

TEXT = (CHECKOUT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| ([^|`]+) \| ([^|]+) \| `(tlserve[\w.]*)(?::[\w.]+)?` \|$", re.MULTILINE)


def test_every_row_has_a_word_a_meaning_and_an_owner() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ")]
    assert len(ROW.findall(TEXT)) == len(rows) - 1 > 40  # the first row is the head of the table


def test_the_words_are_sorted_and_each_is_defined_once() -> None:
    words = [word for word, _, _ in ROW.findall(TEXT)]
    assert words == sorted(set(words), key=str.lower)


def test_a_meaning_is_one_or_two_sentences() -> None:
    meanings = {word: meaning for word, meaning, _ in ROW.findall(TEXT)}
    assert {
        word for word, meaning in meanings.items() if not 1 <= meaning.count(". ") + 1 <= 2 or meaning[-1] != "."
    } == set()


def test_every_owner_exists() -> None:
    assert [module for _, _, module in ROW.findall(TEXT) if tree_of(module) is None] == []
    assert missing_symbols(TEXT) == []
