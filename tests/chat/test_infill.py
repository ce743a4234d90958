"""Prompts for filling in are those of llama.cpp's server, id by id."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.kit.chat.infill_vocabularies import BASE, RECORDED, tokenizer_of
from tests.kit.scripted_backend import ScriptedBackend
from tlserve.chat.infill import FillTokens, Gap, encode_gap, fill_tokens
from tlserve.chat.served_model import Served
from tlserve.errors import Refusal
from tlserve.text.byte_tokenizer import ByteTokenizer
from tlserve.text.tokenizer import Tokenizer

FAMILIES: Mapping[str, Any] = RECORDED["families"]


def served(tokenizer: Tokenizer) -> Served:
    return Served(model_id="m", backend=ScriptedBackend(), tokenizer=tokenizer)


def gap_of(case: Mapping[str, Any]) -> Gap:
    files = tuple((chunk["text"], chunk.get("filename", "tmp")) for chunk in case["input_extra"])
    return Gap(prefix=case["input_prefix"], suffix=case["input_suffix"], prompt=case["prompt"], files=files)


@pytest.mark.spec("API-205")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_prompt_is_that_of_llama_cpp(family: str) -> None:
    tokenizer = tokenizer_of(family)
    marks = fill_tokens(served(tokenizer))
    for case, line in zip(RECORDED["cases"], FAMILIES[family]["ids"], strict=True):
        window, answer, context = case["n_batch"], case["n_predict"], case["n_ctx"]
        space = max(0, context - window - 2 * answer)
        ids = encode_gap(tokenizer, marks, gap_of(case), window=window, space=space, specials=True)
        assert ids == tuple(map(int, line.split())), case


@pytest.mark.spec("API-205")
def test_the_tokens_of_a_family_are_found_by_their_spelling() -> None:
    first = len(BASE["tokens"])
    found = {family: fill_tokens(served(tokenizer_of(family))) for family in FAMILIES}
    assert found == {
        "qwen": FillTokens(first, first + 1, first + 2, first + 4, first + 5, first + 3),
        "granite": FillTokens(first, first + 1, first + 2, first + 4, None, first + 3),
        "deepseek": FillTokens(first, first + 1, first + 2),
    }


@pytest.mark.spec("API-206")
def test_a_text_spells_no_token_unless_the_prompt_may() -> None:
    tokenizer = tokenizer_of("qwen")
    marks = fill_tokens(served(tokenizer))
    gap = Gap(prefix="<|fim_middle|>", suffix="<|fim_middle|>", prompt="<|fim_middle|>", files=(("<|file_sep|>", "x"),))
    plain = encode_gap(tokenizer, marks, gap, window=99, space=99)
    assert plain.count(marks.middle) == 1
    assert plain.count(marks.file or 0) == 2
    assert encode_gap(tokenizer, marks, gap, window=99, space=99, specials=True).count(marks.middle) == 2


@pytest.mark.spec("API-206")
def test_a_vocabulary_without_these_tokens_is_refused_with_what_is_missing() -> None:
    with pytest.raises(
        Refusal, match=r"'m' cannot fill in: .* no token for prefix and suffix and middle; name"
    ) as caught:
        fill_tokens(served(ByteTokenizer()))
    assert caught.value.param == "model"
