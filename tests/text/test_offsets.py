"""Offsets of tokens in a text, compared with a slow count from the beginning."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.model.tiny_tokenizers import gpt2_metadata, llama_metadata
from tlserve.text.offsets import offsets_in, token_offsets
from tlserve.text.tokenizer import build_tokenizer

TINY = build_tokenizer(gpt2_metadata())
SPACED = build_tokenizer(llama_metadata({"\u2581": 0.0, "a": -1.0, "b": -2.0, "\u2581a": -0.5}))


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """Return a text and its bytes in pieces, split anywhere, some of them empty."""
    text = draw(st.text("aé漢👩\u200d", max_size=8))
    data = text.encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    bounds = [0, *cuts, len(data)]
    return text, [data[start:end] for start, end in itertools.pairwise(bounds)]


@pytest.mark.spec("API-131")
@given(cut_texts())
def test_an_offset_is_that_of_the_character_that_the_first_byte_belongs_to(cut: tuple[str, list[bytes]]) -> None:
    text, pieces = cut
    offsets, spelled = token_offsets(pieces)
    starts = [len(b"".join(pieces[:index])) for index in range(len(pieces))]
    ends = [len(text[:count].encode()) for count in range(1, len(text) + 1)]  # where each character ends
    assert spelled == text
    assert offsets == [sum(end <= start for end in ends) for start in starts]


def test_bytes_that_are_not_text_count_as_their_replacement() -> None:
    assert token_offsets([b"\xff", b"\xc3", b"a", b"\xf0\x9f"]) == ([0, 1, 1, 3], "\ufffd\ufffda\ufffd")


def test_the_tokens_of_a_text_are_found_in_it() -> None:
    text = "the 漢 é there"
    ids = TINY.encode(text)
    offsets = offsets_in(text, [TINY.token_bytes(token) for token in ids])
    for start, end in zip(offsets, [*offsets[1:], len(text)], strict=True):
        assert 0 <= start <= end <= len(text)
    assert offsets[0] == 0


def test_a_space_that_the_vocabulary_adds_is_not_counted() -> None:
    ids = SPACED.encode("ab")
    pieces = [SPACED.token_bytes(token) for token in ids]
    assert b"".join(pieces) == b" ab"
    assert offsets_in("ab", pieces) == [0, 1]


def test_the_first_spelling_that_is_the_text_counts() -> None:
    hidden, spelled = [b"", b"a", b"", b"b"], [b"<s>", b"a", b"<x>", b"b"]
    assert offsets_in("ab", hidden, spelled) == [0, 0, 1, 1]
    assert offsets_in("a<x>b", hidden, spelled, [b"", *spelled[1:]]) == [0, 0, 1, 4]


@pytest.mark.parametrize("text", ["", "x", "other"])
def test_tokens_that_do_not_spell_the_text_stay_within_it(text: str) -> None:
    offsets = offsets_in(text, [b"ab", b"cd", b"ef", b"gh"])
    assert offsets == [min(offset, len(text)) for offset in (0, 2, 4, 6)]
