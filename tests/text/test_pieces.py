"""Long texts are encoded in pieces: the ids are those of the whole, and the work ends when nobody waits for it."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.model.tiny_tokenizers import SENTENCE, gpt2_metadata, llama_metadata
from tlserve.text import pieces
from tlserve.text.byte_alphabets import SPACE
from tlserve.text.kinds.pre_tokenizers import PRE_TOKENIZERS
from tlserve.text.pieces import Dropped, allows_cuts, is_dropped, pieces_of
from tlserve.text.tokenizer import Tokenizer, build_tokenizer

BITS = [
    *"abthe XY  \n\t\r.,'\"0129é日本ß—!?()[]{}|/\u0301",
    SPACE,
    "'s",
    "'ll",
    " the",
    " other",
    "a b",
    "\n\n",
    "  ",
    "<|im_start|>",
]
WORDS = {SPACE: -1.0, "a": -2.0, "b": -2.5, SPACE + "a": -3.0, "ab": -4.0, SPACE * 2: -5.0, SPACE + "ab": -6.0}


@pytest.fixture
def set_size(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Give a function that sets the least length of a piece."""
    return lambda size: monkeypatch.setattr(pieces, "PIECE_CHARACTERS", size)


def check_same(tokenizer: Tokenizer, set_size: Callable[[int], None]) -> int:
    """Compare the ids of random texts in pieces with those of the whole; return the number of cuts."""
    rng, cuts = random.Random(7), 0
    for _ in range(40):
        text = "".join(rng.choice(BITS) for _ in range(rng.choice((3, 40, 200))))
        origin = "".join(rng.choice("tc") for _ in text)
        set_size(1 << 30)
        whole = tokenizer.encode(text), tokenizer.encode_with_specials(text, origin=origin)
        set_size(rng.choice((1, 2, 5, 30)))
        assert (tokenizer.encode(text), tokenizer.encode_with_specials(text, origin=origin)) == whole, repr(text)
        cuts += len(list(tokenizer._cuts(text))) - 1  # type: ignore[attr-defined]
    return cuts


@pytest.mark.spec("TEXT-32")
@pytest.mark.parametrize("name", sorted(set(PRE_TOKENIZERS)))
def test_pieces_have_the_ids_of_the_whole(name: str, set_size: Callable[[int], None]) -> None:
    for defined in ((), (" the", "a", "xx ", "\n\n", "  ")):
        assert check_same(build_tokenizer(gpt2_metadata(pre=name, user_defined=defined)), set_size) > 20


@pytest.mark.spec("TEXT-32")
@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_have_the_ids_of_the_whole_in_sentencepiece(prefix: bool, set_size: Callable[[int], None]) -> None:
    tokenizer = build_tokenizer(llama_metadata(WORDS, add_space_prefix=prefix))
    assert check_same(tokenizer, set_size) > 20


@pytest.mark.spec("TEXT-32")
def test_a_vocabulary_with_tokens_across_words_keeps_texts_whole(set_size: Callable[[int], None]) -> None:
    across = "a" + SPACE + "b"
    values = WORDS | {"a" + SPACE: -2.6, across: -2.7}
    assert check_same(build_tokenizer(llama_metadata(values)), set_size) == 0


def test_a_text_is_cut_only_between_two_letters() -> None:
    text = ("a b" + " 1" + "\n" + "é c" + " -" + "  ") * 20_000
    found = list(pieces_of(text))
    assert "".join(found) == text
    assert len(found) > 2
    assert all(piece[:2] == " b" for piece in found[1:])
    assert list(pieces_of("日" * 200_000)) == ["日" * 200_000]


def test_a_token_with_a_letter_before_a_space_forbids_cuts() -> None:
    assert allows_cuts([" the", "  ", "1 2", "- ", "the"])
    assert not allows_cuts(["the "])
    assert not allows_cuts(["a" + SPACE + "b"], SPACE)


@pytest.mark.parametrize("encode", ["encode", "encode_with_specials"])
def test_encoding_ends_after_a_piece_for_a_client_that_left(encode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer: Any = build_tokenizer(gpt2_metadata())
    asked = 0

    def leaves_soon() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    before = is_dropped.set(leaves_soon)
    with pytest.raises(Dropped):
        getattr(tokenizer, encode)(SENTENCE * 10_000)
    is_dropped.reset(before)
    assert asked == 3


def test_encoding_ends_between_messages_for_a_client_that_left() -> None:
    tokenizer = build_tokenizer(gpt2_metadata())
    before = is_dropped.set(lambda: True)
    with pytest.raises(Dropped):
        tokenizer.encode_with_specials("a<|im_start|>b")
    is_dropped.reset(before)
