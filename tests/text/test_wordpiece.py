"""WordPiece by a tokenizer.json, as in BERT encoders: unknown words, the frame of a text, no control tokens from text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.kit.model.tiny_bert import CLS, SEP, TOKENIZER, UNK, VOCABULARY
from tlserve.errors import ModelRefused
from tlserve.text.byte_tokenizer import ByteTokenizer
from tlserve.text.tokenizer import build_tokenizer, framed


def build(bos=CLS, eos=SEP, **changes):
    metadata = {"tokenizer.huggingface.json": json.dumps({**TOKENIZER, **changes})}
    marks = {"tokenizer.ggml.bos_token_id": bos, "tokenizer.ggml.eos_token_id": eos}
    return build_tokenizer(metadata | {name: mark for name, mark in marks.items() if mark is not None})


TINY = build()
LIBRARY = Tokenizer.from_str(json.dumps({**TOKENIZER, "truncation": None}))
NO_CUTS = build(normalizer=None, pre_tokenizer={"type": "WhitespaceSplit"})
TEXTS = st.text(st.sampled_from("abCDz .,!?[]éß漢🙂\n\t\u200b"), max_size=30)


@pytest.mark.spec("TEXT-22")
@given(TEXTS)
def test_a_framed_text_has_the_ids_of_the_library(text):
    assert framed(TINY, TINY.encode(text)) == LIBRARY.encode(text).ids


@pytest.mark.spec("TEXT-21")
def test_words_that_cannot_be_spelled_stay_unknown_words():
    assert TINY.encode("the 🙂 cat") == [VOCABULARY.index("the"), UNK, VOCABULARY.index("cat")]


@pytest.mark.spec("TEXT-22", "TEXT-25")
def test_no_text_is_truncated_or_padded():
    assert len(TINY.encode("a " * 300)) == 300


@pytest.mark.spec("TEXT-21")
@given(st.lists(st.sampled_from(["[SEP]", "[CLS]", "[UNK]", "[MASK]", "🙂", "cat", " ", "[", "]"]), max_size=9))
def test_text_never_becomes_a_control_token(parts):
    text = "".join(parts)
    for tokenizer in (TINY, NO_CUTS):
        assert set(tokenizer.encode(text)).isdisjoint({0, CLS, SEP, 4})


def test_specials_are_read_where_they_are_requested():
    assert TINY.encode_with_specials("[CLS]cat[SEP]") == [CLS, VOCABULARY.index("cat"), SEP]


def test_continued_words_are_spelled_without_a_space():
    spelled = b"".join(map(TINY.token_bytes, [CLS, *TINY.encode("sating cab"), SEP]))
    assert spelled == b" sating cab"


@pytest.mark.spec("TEXT-22")
@pytest.mark.parametrize(
    ("tokenizer", "ids"),
    [
        (TINY, [CLS, 9, SEP]),
        (build(eos=None), [CLS, 9]),
        (build(bos=None), [9, SEP]),
        (build(post_processor=None), [9]),
        (build(bos=SEP), [9, SEP]),  # the frame does not begin with it
        (ByteTokenizer(), [9]),
    ],
)
def test_a_text_is_framed_by_the_tokens_of_the_files_and_the_frame(tokenizer, ids):
    assert framed(tokenizer, [9]) == ids


@pytest.mark.spec("TEXT-22")
def test_a_frame_of_one_token_is_a_beginning_without_an_end():
    one = {**TOKENIZER["post_processor"], "single": TOKENIZER["post_processor"]["single"][:2]}
    tokenizer = build(bos=CLS, eos=CLS, post_processor=one)
    assert (tokenizer.add_bos, tokenizer.add_eos) == (True, False)


@pytest.mark.spec("TEXT-21")
@pytest.mark.parametrize("unknown", [None, "[NONE]", 7])
def test_a_vocabulary_without_its_unknown_word_is_refused(unknown):
    with pytest.raises(ModelRefused, match=r"unknown words|data did not match|invalid type"):
        build(model={**TOKENIZER["model"], "unk_token": unknown})
