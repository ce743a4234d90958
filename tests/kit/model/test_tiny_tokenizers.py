"""The tiny vocabularies are complete, and the slow encoders follow their definitions."""

import pytest

from tests.kit.model.tiny_tokenizers import (
    NASTY,
    gpt2_metadata,
    learn_merges,
    llama_metadata,
    merge_pair,
    slow_bpe,
    slow_sentencepiece,
    spell_bytes,
)


@pytest.mark.parametrize("control", [(), NASTY])
def test_the_tiny_gpt2_vocabulary_has_every_token_once_and_a_kind_for_each(control: tuple[str, ...]) -> None:
    metadata = gpt2_metadata(control=control)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert len(set(tokens)) == len(tokens) == len(metadata["tokenizer.ggml.token_type"])
    assert set(spell_bytes(bytes(range(256)))) <= set(tokens)


def test_the_tiny_llama_vocabulary_has_a_score_for_each_token() -> None:
    metadata = llama_metadata({"a": 0.0})
    assert len(metadata["tokenizer.ggml.tokens"]) == len(metadata["tokenizer.ggml.scores"]) == 260


def test_training_merges_the_commonest_pair_first() -> None:
    assert learn_merges("aab aab ab", 1) == [("a", "b")]


def test_a_pair_is_merged_from_the_left() -> None:
    assert merge_pair(list("aaa"), ("a", "a")) == ["aa", "a"]


def test_slow_bpe_takes_the_best_rank_first() -> None:
    assert slow_bpe(list("abc"), [("b", "c"), ("a", "b")]) == ["a", "bc"]


def test_slow_sentencepiece_takes_the_best_score_first() -> None:
    assert slow_sentencepiece("abc", {"ab": -2.0, "bc": -1.0}) == ["a", "bc"]
