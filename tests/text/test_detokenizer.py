"""Bytes become text as soon as they are valid, the same for every split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.http.feeding import assert_same_at_every_split, run_text
from tlserve.text.detokenizer import Detokenizer


def test_an_incomplete_character_waits():
    detokenizer = Detokenizer()
    assert [detokenizer.feed(bytes((byte,))) for byte in "é漢".encode()] == ["", "é", "", "", "漢"]


def test_the_valid_text_before_an_incomplete_character_is_released():
    assert Detokenizer().feed("ab漢".encode()[:-1]) == "ab"


@pytest.mark.spec("TEXT-13")
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_tail_cut_inside_a_character_is_replaced_once(cut):
    assert assert_same_at_every_split("a👧".encode()[: 1 + cut], run_text(Detokenizer)) == "a\ufffd"


@pytest.mark.spec("TEXT-12")
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff", "\ufffd"),
        (b"\xc0\xaf", "\ufffd\ufffd"),
        (b"\xe0\x80\xaf", "\ufffd\ufffd\ufffd"),
        (b"\xf0\x9fa", "\ufffda"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        (b"\xf0\x9f\xf0\x9f\x91\xa7", "\ufffd👧"),
    ],
)
def test_invalid_bytes_are_replaced_by_the_whatwg_rule(data, text):
    assert assert_same_at_every_split(data, run_text(Detokenizer)) == text


def test_finish_after_whole_characters_gives_nothing():
    detokenizer = Detokenizer()
    detokenizer.feed("é".encode())
    assert detokenizer.finish() == ""


@pytest.mark.spec("TEXT-12")
@given(st.binary(max_size=24))
def test_any_bytes_at_every_split_give_the_text_that_python_decodes(data):
    assert assert_same_at_every_split(data, run_text(Detokenizer), count=4) == data.decode("utf-8", "replace")
