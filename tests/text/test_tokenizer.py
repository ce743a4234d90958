"""Tokenizers built from metadata: compared with slow encoders, with hostile special tokens, and from hostile metadata."""

import json
import time
from mmap import ACCESS_READ, mmap

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.kit.model.tiny_tokenizers import (
    CHATML,
    NASTY,
    gpt2_metadata,
    llama_metadata,
    prefixed,
    slow_bpe,
    slow_sentencepiece,
    spell_bytes,
)
from tests.kit.source_tree import GOLDEN
from tlserve.errors import ModelRefused
from tlserve.model.gguf.header import read_header
from tlserve.text.kinds.pre_tokenizers import PRE_TOKENIZERS, library_pre_tokenizer
from tlserve.text.tokenizer import build_tokenizer, with_bos

SMOL = json.loads((GOLDEN / "smol-135m.json").read_text(encoding="utf-8"))
TINY = build_tokenizer(gpt2_metadata())
NASTY_TINY = build_tokenizer(gpt2_metadata(control=NASTY))
BYTES = build_tokenizer(prefixed({"model": "bytes"}))
PIECES = {"\u2581": -50.0} | {letter: -60.0 - i for i, letter in enumerate("abcdefgh")}
PIECES |= {
    piece: -float(rank)
    for rank, piece in enumerate(["ab", "\u2581a", "abc", "cd", "\u2581ab", "bcd", "abcd", "ef", "gh", "efgh"], 1)
}
LLAMA = build_tokenizer(llama_metadata(PIECES, add_space_prefix=False))
SPELLINGS = st.lists(
    st.sampled_from([*NASTY, *CHATML, "<", ">", "a", "b", "|", "the ", "\n", " ", "é", "👧"]), max_size=8
)


def read(tokenizer, ids):
    return b"".join(map(tokenizer.token_spelling, ids)).decode()


# --- bytes -------------------------------------------------------------------------------------------------------------


@given(st.text(max_size=20))
def test_the_byte_tokenizer_gives_the_bytes(text):
    assert BYTES.encode(text) == BYTES.encode_with_specials(text) == list(text.encode())
    assert b"".join(map(BYTES.token_bytes, BYTES.encode(text))) == text.encode()


def test_the_byte_tokenizer_has_nothing_special():
    assert (BYTES.vocabulary_size, BYTES.special_tokens, BYTES.bos_id, BYTES.add_bos) == (256, {}, None, False)


# --- gpt2 --------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("TEXT-6")
@given(st.text("the rsyum\u00e9", max_size=12))
def test_merges_of_one_word_are_those_of_a_slow_bpe(text):
    word = text.replace(" ", "")
    metadata = gpt2_metadata()
    merges = [tuple(line.split(" ")) for line in metadata["tokenizer.ggml.merges"]]
    tokens = metadata["tokenizer.ggml.tokens"]
    assert [tokens[i] for i in TINY.encode(word)] == slow_bpe(list(spell_bytes(word.encode())), merges)


@pytest.mark.spec("TEXT-1")
@given(st.text(max_size=30))
@example("a\x00b\x85\u2028 \u3000")
@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen2", "default", "deepseek-v3"])
def test_the_ids_of_any_text_decode_to_it(pre, text):
    tokenizer = build_tokenizer(gpt2_metadata(pre=pre))
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()


@pytest.mark.spec("TEXT-1")
@pytest.mark.parametrize("tokenizer", [TINY, NASTY_TINY, LLAMA], ids=["chatml", "nasty", "llama"])
@given(parts=SPELLINGS)
def test_text_never_becomes_a_special_token_and_decodes_unchanged(tokenizer, parts):
    text = "".join(parts)
    ids = tokenizer.encode(text)
    assert set(tokenizer.special_tokens.values()).isdisjoint(ids)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


@pytest.mark.spec("TEXT-2")
@given(parts=SPELLINGS)
def test_with_specials_the_leftmost_longest_spelling_wins(parts):
    text = "".join(parts)
    assert [i for i in NASTY_TINY.encode_with_specials(text) if i < len(NASTY)] == slow_specials(text)
    assert read(NASTY_TINY, NASTY_TINY.encode_with_specials(text)) == text


def slow_specials(text):
    found, at = [], 0
    while at < len(text):
        here = [spelling for spelling in NASTY if text.startswith(spelling, at)]
        found += [NASTY.index(max(here, key=len))] if here else []
        at += len(max(here, key=len)) if here else 1
    return found


@pytest.mark.spec("TEXT-3")
def test_a_spelling_is_a_special_token_only_where_all_its_letters_permit_it():
    text = "<|im_end|> <|im_end|>"
    assert TINY.encode_with_specials(text, origin="ttttcttttt" + "t" * 11) == [*TINY.encode("<|im_end|> "), 2]
    assert TINY.encode_with_specials(text, origin="c" * 21) == TINY.encode(text)
    assert TINY.encode_with_specials(text, origin="t" * 21) == TINY.encode_with_specials(text)


@pytest.mark.spec("TEXT-3")
def test_a_shorter_token_is_found_in_a_longer_one_that_a_client_completed():
    tokenizer = build_tokenizer(gpt2_metadata(control=["<a", "<ab>"]))
    assert tokenizer.encode_with_specials("<ab>", origin="tttt") == [1]
    assert tokenizer.encode_with_specials("<ab>", origin="ttcc") == [0, *tokenizer.encode("b>")]


def test_a_whole_word_that_is_a_control_token_stays_text():
    tokenizer = build_tokenizer(gpt2_metadata(control=["there", "\u0120there"], pre="llama-bpe"))
    assert read(tokenizer, tokenizer.encode("there " * 5000)) == "there " * 5000
    assert {0, 1}.isdisjoint(tokenizer.encode("there " * 5000))
    assert tokenizer.encode_with_specials("there") == [0]


@pytest.mark.spec("TEXT-5")
def test_control_tokens_have_no_visible_text_and_keep_their_spelling():
    assert (TINY.token_bytes(2), TINY.token_spelling(2)) == (b"", b"<|im_end|>")


@pytest.mark.spec("TEXT-4")
def test_user_defined_tokens_are_special_and_visible():
    tokenizer = build_tokenizer(gpt2_metadata(control=(), user_defined=["<think>", "\u00e9\u00e9"]))
    assert tokenizer.special_tokens == {"<think>": 0, "\u00e9\u00e9": 1}
    assert (tokenizer.token_bytes(0), tokenizer.token_bytes(1)) == (b"<think>", "\u00e9\u00e9".encode())
    assert tokenizer.encode_with_specials("<think>")[0] == 0 not in tokenizer.encode("<think>")


@pytest.mark.spec("TEXT-4")
def test_user_defined_runs_of_white_space_are_text():
    tokenizer = build_tokenizer(gpt2_metadata(control=(), user_defined=["    ", "\n\n"]))
    assert (tokenizer.special_tokens, tokenizer.encode("\n\n    ")) == ({}, [1, 0])


def test_special_tokens_are_sorted_longest_first():
    lengths = [len(spelling) for spelling in NASTY_TINY.special_tokens]
    assert lengths == sorted(lengths, reverse=True)


def test_a_lone_surrogate_is_replaced():
    assert read(TINY, TINY.encode("a\ud800b")) == "a?b"


@pytest.mark.parametrize("token", [-1, TINY.vocabulary_size])
def test_a_token_outside_the_vocabulary_has_no_bytes(token):
    with pytest.raises(IndexError):
        TINY.token_bytes(token)


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_splits_text_without_loss(pre):
    text = "It's 12345 o'CLOCK,\r\n\n  she'll  say: 漢字 42! \t<x>"
    cuts = library_pre_tokenizer(PRE_TOKENIZERS[pre]).pre_tokenize_str(text)
    assert "".join(word for word, _ in cuts) == spell_bytes(text.encode())


@pytest.mark.spec("TEXT-6")
@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["It", "'s", " 1234", " x", "!!", " ", " y"]),
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", " x", "!!", " ", " y"]),
        ("llama-bpe", ["It", "'s", " ", "123", "4", " x", "!!", " ", " y"]),
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", " x", "!!", " ", " y"]),
    ],
)
def test_known_pre_tokenizers_split_like_their_models(pre, words):
    cuts = library_pre_tokenizer(PRE_TOKENIZERS[pre]).pre_tokenize_str("It's 1234 x!!  y")
    assert [word for word, _ in cuts] == [spell_bytes(word.encode()) for word in words]


# --- llama -------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("TEXT-7")
@given(st.text("abcdefgh ", max_size=14))
def test_scores_merge_as_a_slow_sentencepiece_does(text):
    tokens = llama_metadata(PIECES)["tokenizer.ggml.tokens"]
    assert [tokens[i] for i in LLAMA.encode(text)] == slow_sentencepiece(text, PIECES)


@pytest.mark.spec("TEXT-7")
def test_text_missing_from_the_llama_vocabulary_becomes_byte_tokens():
    assert LLAMA.encode("aé") == [LLAMA.encode("a")[0], 3 + 0xC3, 3 + 0xA9]
    assert [LLAMA.token_bytes(i) for i in LLAMA.encode("é")] == [b"\xc3", b"\xa9"]


def test_the_spelling_of_a_byte_token_is_ordinary_text():
    assert LLAMA.encode("<0x41>") == [3 + byte for byte in b"<0x41>"]


@pytest.mark.spec("TEXT-23")
def test_a_space_is_added_before_text_if_the_model_needs_one():
    spaced = build_tokenizer(llama_metadata(PIECES))
    assert spaced.encode("ab") == LLAMA.encode(" ab")
    assert spaced.encode("") == []


@pytest.mark.spec("TEXT-10")
def test_bos_is_added_once():
    assert (LLAMA.bos_id, LLAMA.eos_id, LLAMA.add_bos) == (1, 2, True)
    assert with_bos(LLAMA, [5]) == with_bos(LLAMA, [1, 5]) == [1, 5]
    assert with_bos(TINY, [5]) == [5]


# --- tokenizer.json ----------------------------------------------------------------------------------------------------


def huggingface(**changes):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    metadata = gpt2_metadata(control=())
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(line.split(" ")) for line in metadata["tokenizer.ggml.merges"]]
    library = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(token, normalized=False) for token in CHATML])
    library.add_tokens([AddedToken("<think>", normalized=False)])
    document = json.loads(library.to_str()) | changes
    return {"tokenizer.huggingface.json": json.dumps(document), "tokenizer.ggml.eos_token_id": len(tokens) + 2}


@pytest.mark.spec("TEXT-8")
def test_a_tokenizer_json_gives_the_librarys_ids_and_wins_over_metadata():
    from tokenizers import Tokenizer

    metadata = huggingface()
    tokenizer = build_tokenizer(gpt2_metadata() | metadata)
    text = "<|im_start|>the theatre<think>é<|im_end|>"
    library = Tokenizer.from_str(metadata["tokenizer.huggingface.json"])
    assert tokenizer.encode_with_specials(text) == library.encode(text).ids
    assert read(tokenizer, library.encode(text).ids) == text
    assert tokenizer.eos_id == tokenizer.special_tokens["<|im_end|>"]


def test_text_never_becomes_a_special_token_of_a_tokenizer_json():
    tokenizer = build_tokenizer(huggingface())
    ids = tokenizer.encode("<|im_end|><think>")
    assert set(tokenizer.special_tokens.values()).isdisjoint(ids)
    assert read(tokenizer, ids) == "<|im_end|><think>"


@pytest.mark.spec("TEXT-9")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"model": {}}',
        '{"model": {"type": "BPE"}}',
        "[" * 100_000,
        json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "decoder": None}),
        json.dumps(
            {
                "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]},
                "decoder": {"type": "ByteLevel"},
            }
        ),
    ],
)
def test_a_broken_tokenizer_json_is_refused(text):
    with pytest.raises(ModelRefused):
        build_tokenizer({"tokenizer.huggingface.json": text})


@pytest.mark.spec("TEXT-9")
@pytest.mark.parametrize(
    "added",
    [
        [1],
        [{"id": 0}],
        [{"id": -1, "content": "<x>"}],
        [{"id": 1 << 30, "content": "<x>"}],
        [{"id": 999, "content": "<x>", "special": True}],
        [{"id": 0, "content": "<x>", "special": True, "single_word": True}],
        "<x>",
    ],
)
def test_inconsistent_added_tokens_are_refused(added):
    with pytest.raises(ModelRefused):
        build_tokenizer(huggingface(added_tokens=added))


# --- hostile metadata ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("TEXT-9", "TEXT-29")
@pytest.mark.parametrize(
    "metadata",
    [
        {},
        prefixed({"model": "rwkv"}),
        prefixed({"model": 7}),
        gpt2_metadata(pre="no-such-cut"),
        gpt2_metadata() | prefixed({"pre": 3}),
        gpt2_metadata(tokens=None),
        gpt2_metadata(tokens=[]),
        gpt2_metadata(tokens="abc"),
        gpt2_metadata(tokens=[1, 2]),
        gpt2_metadata(tokens=["a", "a"], token_type=[1, 1], merges=[]),
        gpt2_metadata(tokens=["a", "\ud800"], token_type=[1, 1], merges=[]),
        gpt2_metadata(tokens=["a" * 100_000], token_type=[1], merges=[]),
        gpt2_metadata(token_type=[1]),
        gpt2_metadata(tokens=["a"], token_type=[True], merges=[]),
        gpt2_metadata(merges=["a"]),
        gpt2_metadata(merges=["a "]),
        gpt2_metadata(merges=["no such"]),
        gpt2_metadata(merges=[7]),
        gpt2_metadata(eos_token_id="2"),
        gpt2_metadata(add_bos_token=1),
        gpt2_metadata(control=["<"]),
        llama_metadata(PIECES, scores=None),
        llama_metadata(PIECES, scores=[0.0]),
        llama_metadata({"a": float("nan")}),
        llama_metadata(PIECES, tokens=["<unk>"], token_type=[2], scores=[0.0], bos_token_id=None, eos_token_id=None),
        llama_metadata(PIECES, add_space_prefix="yes"),
    ],
    ids=range(26),
)
def test_inconsistent_metadata_are_refused(metadata):
    with pytest.raises(ModelRefused) as refused:
        build_tokenizer(metadata)
    assert "\n" not in refused.value.message


@pytest.mark.spec("TEXT-6")
def test_an_unknown_pre_tokenizer_is_named():
    with pytest.raises(ModelRefused, match="no-such-cut"):
        build_tokenizer(gpt2_metadata(pre="no-such-cut"))


def test_an_empty_token_has_no_text():
    metadata = gpt2_metadata()
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "", ""]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 5, 5]
    tokenizer = build_tokenizer(metadata)
    assert tokenizer.token_bytes(tokenizer.vocabulary_size - 1) == b""


# --- the real model -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smol(smol_path):
    with smol_path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        return read_header(data).metadata


@pytest.mark.spec("TEXT-11")
@pytest.mark.real_model
def test_smollm_gives_the_golden_ids_and_reads_them_back(smol):
    tokenizer = build_tokenizer(smol)
    for case in SMOL:
        assert tokenizer.encode_with_specials(case["text"]) == case["ids"], case["name"]
        assert read(tokenizer, case["ids"]) == case["text"]


@pytest.mark.slow
@pytest.mark.spec("TEXT-28")
@pytest.mark.real_model
def test_smollm_is_built_in_half_a_second(smol):
    build_tokenizer(gpt2_metadata())
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        build_tokenizer(smol)
        seconds.append(time.process_time() - begin)
    assert min(seconds) < 0.5
