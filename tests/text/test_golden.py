"""Every family of tokenizers, compared with the ids of the `tokenizers` package (tests/golden/tokenizers)."""

import json

import pytest

from tests.kit.source_tree import GOLDEN
from tlserve.text.detokenizer import Detokenizer
from tlserve.text.tokenizer import build_tokenizer, with_bos

TOKENIZERS = GOLDEN / "tokenizers"
FAMILIES = json.loads((TOKENIZERS / "ids.json").read_text())
BOS = {"llama3": 0, "llama2": 1, "mistral": 1}
CASES = [
    pytest.param(name, case, id=f"{name}-{case['text'][:20]!r}") for name, cases in FAMILIES.items() for case in cases
]


@pytest.fixture(scope="module")
def tokenizers():
    return {name: build_tokenizer(metadata_of(name)) for name in FAMILIES}


def metadata_of(name):
    text = {"tokenizer.huggingface.json": (TOKENIZERS / f"{name}.json").read_text()}
    return text | ({"tokenizer.ggml.bos_token_id": BOS[name]} if name in BOS else {})


@pytest.mark.spec("TEXT-18", "TEXT-23")
@pytest.mark.parametrize(("name", "case"), CASES)
def test_text_has_the_golden_ids_with_and_without_its_frame(tokenizers, name, case):
    ids = tokenizers[name].encode_with_specials(case["text"])
    assert ids == case["ids"]
    assert with_bos(tokenizers[name], ids) == (case["framed"] if ids[:1] != [BOS.get(name)] else case["framed"][1:])


@pytest.mark.spec("TEXT-18")
@pytest.mark.parametrize(("name", "case"), CASES)
def test_the_bytes_of_the_ids_are_the_decoded_text(tokenizers, name, case):
    detokenizer = Detokenizer()
    text = (
        "".join(detokenizer.feed(tokenizers[name].token_bytes(token)) for token in case["ids"]) + detokenizer.finish()
    )
    # the package drops a space at the beginning of what llama2 and mistral decode; we keep the text of each token
    assert text.lstrip(" ") == case["decoded"].lstrip(" ")


@pytest.mark.spec("TEXT-19")
def test_ids_beyond_the_tokenizers_own_have_no_text(tokenizers):
    own = tokenizers["qwen2"].vocabulary_size
    padded = build_tokenizer(metadata_of("qwen2") | {"tokenizer.huggingface.vocabulary_size": own + 5})
    assert padded.vocabulary_size == own + 5
    assert padded.token_bytes(own + 4) == b""
    assert padded.encode("Hello") == tokenizers["qwen2"].encode("Hello")
