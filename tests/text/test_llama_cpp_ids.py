"""The ids that llama.cpp gives, for each of its pre-tokenizers and kinds of vocabularies: equal, refused, or explained."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.make.tokenizers_page import OWN, VOCABULARIES, kind_rows, pre_rows
from tests.kit.linear_time import Rate, growth_fault
from tests.kit.model.tiny_tokenizers import gpt2_metadata
from tests.kit.pattern_texts import Hostile
from tlserve.errors import ModelRefused
from tlserve.text.kinds.pre_tokenizers import PRE_TOKENIZERS
from tlserve.text.tokenizer import build_tokenizer, framed, with_bos

ROWS = {**{f"pre {row.name}": row for row in pre_rows()}, **{f"kind {row.name}": row for row in kind_rows()}}
KINDS = json.loads((VOCABULARIES / "kinds.json").read_text())
REFUSED = {"pre whitespace"} | {
    f"kind {name}" for name in ("hybriddna", "none", "plamo2", "rwkv", "test", "whitespace")
}


def built(kind, **changes):
    values = {**KINDS[kind]["vocabulary"], **changes}
    return build_tokenizer({f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None})


@pytest.mark.spec("TEXT-31", "TEXT-6")
@pytest.mark.parametrize("name", ROWS)
def test_the_ids_of_every_name_are_those_of_llama_cpp(name):
    row = ROWS[name]
    print(
        f"{row.name}: {row.equal} equal, {row.different} on purpose not equal, {row.wrong} wrong, refused: {row.refused}"
    )
    assert row.refused == (name in REFUSED)
    assert row.wrong == 0
    assert row.refused or row.equal + row.different == 69


def test_every_reason_belongs_to_a_name_that_is_served():
    assert set(OWN) <= {row.name for row in ROWS.values()}


@pytest.mark.spec("TEXT-6")
@pytest.mark.parametrize("name", ["whitespace", "llama-bpe-2", "Qwen2", ""])
def test_a_name_that_is_not_served_is_refused_by_name(name, caplog):
    if name:
        with pytest.raises(ModelRefused, match=f"pre is '{name}'"):
            build_tokenizer(gpt2_metadata(pre=name))
    else:
        build_tokenizer(gpt2_metadata(pre=name))
        assert "tokenizer.ggml.pre is missing" in caplog.text


@pytest.mark.parametrize("pre", sorted({pre: name for name, pre in PRE_TOKENIZERS.items()}.values()))
@pytest.mark.parametrize("text", ["1", " ", "a", "\u0301", "a ", "1a", "!", "\n ", "'", "漢", "1111111a"])
def test_every_pre_tokenizer_takes_linear_time(pre, text):
    tokenizer = build_tokenizer(gpt2_metadata(pre=pre, merges=[]))
    texts = [Hostile("", text, "x").text]
    assert growth_fault(tokenizer.encode, texts, Rate(free_s=0.02, per_char_s=3e-4), largest=20_000) is None


@pytest.mark.spec("TEXT-10")
def test_a_prompt_begins_and_a_text_ends_as_llama_cpp_has_it():
    ids = {"bos_token_id": 0, "eos_token_id": 1}
    assert with_bos(built("gemma4", **ids, add_bos_token=False), [300]) == [0, 300]
    assert with_bos(built("gemma4"), [300]) == [300]
    assert framed(built("t5"), [300]) == [300, 1]
    assert framed(built("t5", add_eos_token=False), [300]) == [300]
    assert framed(built("bert"), [300]) == [2, 300, 3]


def test_no_text_becomes_a_control_token_of_any_kind():
    for kind, recorded in KINDS.items():
        tokens, types = (recorded["vocabulary"][key] for key in ("tokens", "token_type"))
        text = " ".join(token for token, number in zip(tokens, types, strict=True) if number in (2, 3))
        hidden = {i for i, number in enumerate(types) if number == 3 and tokens[i] != "[UNK]"}
        assert hidden.isdisjoint(built(kind).encode(text + "\ufdd00\ufdd01")), kind
        assert hidden <= set(built(kind).encode_with_specials(text)), kind


def test_pieces_spell_the_text_that_was_encoded():
    for kind in ("gemma4", "llama", "t5"):
        tokenizer = built(kind)
        assert b"".join(map(tokenizer.token_bytes, tokenizer.encode("the int x"))).strip() == b"the int x"


RECORDED = json.loads((VOCABULARIES / "charsmap.json").read_text())
TABLE = np.frombuffer(bytes.fromhex(RECORDED["table"]), np.uint8)


@pytest.mark.spec("TEXT-31")
@pytest.mark.parametrize(
    "case", RECORDED["cases"], ids=lambda case: f"merges {case['flags']['remove_extra_whitespaces']}"
)
def test_replacements_of_the_longest_key_give_the_ids_of_llama_cpp(case):
    tokenizer = built("t5", precompiled_charsmap=TABLE, **case["flags"])
    assert list(map(tokenizer.encode, RECORDED["texts"])) == case["ids"]


@given(st.lists(st.tuples(st.integers(0, len(TABLE) - 2), st.integers(0, 255)), min_size=1), st.text(max_size=9))
def test_a_damaged_table_is_refused_or_replaces_something_else(changes, text):
    table = TABLE.copy()
    for place, byte in changes:
        table[place] = byte
    try:
        tokenizer = built("t5", precompiled_charsmap=table)
    except ModelRefused:
        return
    tokenizer.encode(text + "".join(RECORDED["texts"]))


def test_replacements_take_linear_time():
    tokenizer = built("t5", precompiled_charsmap=TABLE)
    texts = [Hostile("", text, "").text for text in ("a\u0308", "-", "\uff76", "a", "\u200b")]
    assert growth_fault(tokenizer.encode, texts, Rate(free_s=0.02, per_char_s=3e-4), largest=50_000) is None


CHARSMAP = np.frombuffer(b"\x04\0\0\0" + bytes(4) + b"a\0", np.uint8)


def test_tokens_that_would_take_much_more_memory_than_the_file_are_refused():
    long = [f"{number:04d}" * 500 for number in range(1000)]
    with pytest.raises(ModelRefused, match="different beginnings; at most 1500000"):
        built("t5", tokens=long, token_type=[1] * 1000, scores=[0.0] * 1000)
    alike = ["a" * number for number in range(1, 3000)]
    assert built("t5", tokens=alike, token_type=[1] * 2999, scores=[-1.0] * 2999).encode("aa") == [1]


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("t5", {"unknown_token_id": "x"}, "unknown_token_id is x"),
        ("t5", {"scores": [0.5]}, "scores has 1 entries"),
        ("t5", {"scores": None}, "scores has 0 entries"),
        ("t5", {"remove_extra_whitespaces": 1}, "remove_extra_whitespaces is not true or false"),
        ("t5", {"precompiled_charsmap": "abc"}, "precompiled_charsmap is not an array of bytes"),
        ("t5", {"precompiled_charsmap": CHARSMAP.astype(np.float32)}, "precompiled_charsmap is not an array of bytes"),
        ("t5", {"precompiled_charsmap": CHARSMAP[:6]}, "precompiled_charsmap is damaged"),
        ("t5", {"precompiled_charsmap": CHARSMAP[:-1]}, "precompiled_charsmap is damaged"),
        ("t5", {"precompiled_charsmap": np.zeros(2 << 20, np.int8)}, "has more than 1048576 bytes"),
        (
            "t5",
            {"precompiled_charsmap": np.array([4, 0, 0, 0] + [0] * 4 + [97] * 300 + [0], np.uint8)},
            "more than 256",
        ),
        (
            "bert",
            {"tokens": ["a", "b", "c", "d"], "token_type": [1] * 4, "unknown_token_id": None},
            "unknown_token_id is miss",
        ),
        ("bert", {"normalizer.lowercase": "yes"}, "normalizer.lowercase is not true or false"),
        ("gemma4", {"merges": None}, "merges is missing"),
        ("gemma4", {"merges": ["q qqq"]}, "merges has 'q qqq'"),
    ],
)
def test_metadata_of_a_kind_that_are_wrong_are_refused_by_key(kind, changes, message):
    with pytest.raises(ModelRefused, match=message):
        built(kind, **changes)
