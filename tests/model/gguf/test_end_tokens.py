"""The end tokens of a GGUF file are those of llama.cpp."""

import mmap
from pathlib import Path
from typing import Any

import pytest

from tlserve.errors import ModelRefused
from tlserve.model.gguf.end_tokens import end_tokens
from tlserve.model.gguf.header import read_header


def found(tokens: list[str], **named: Any) -> set[str]:
    """Return the spellings of the end tokens of a vocabulary; `named` are ids in the metadata."""
    metadata = {"tokenizer.ggml.tokens": tokens, **{f"tokenizer.ggml.{key}_token_id": i for key, i in named.items()}}
    return {tokens[i] for i in end_tokens(metadata, len(tokens))}


@pytest.mark.spec("MOD-44")
@pytest.mark.parametrize(
    ("tokens", "named", "expected"),
    [
        (["a", "b"], {}, set()),
        (["a", "b"], {"eos": 1}, {"b"}),
        (["a", "b", "c"], {"eos": 1, "eot": 2, "eom": 0}, {"a", "b", "c"}),
        (["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a"], {"eos": 2}, {"<|endoftext|>", "<|im_end|>"}),
        (["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"], {}, {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"}),
        (["<end_of_turn>", "<start_of_turn>", "<eos>"], {}, {"<end_of_turn>", "<eos>"}),
        (["<|end|>", "a"], {}, {"<|end|>"}),
        (["<|end|>", "<|return|>", "<|call|>"], {}, {"<|return|>", "<|call|>"}),
        (["<|end|>", "<|flush|>", "<|calls|>"], {}, {"<|flush|>", "<|calls|>"}),
        (["<|end|>", "<|call|>"], {}, {"<|end|>", "<|call|>"}),
        (["</s>", "a"], {}, {"</s>"}),
        (["</s>", "<|tool_response>"], {}, {"<|tool_response>"}),
        (
            ["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_prefix|>"],
            {},
            {"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"},
        ),
        (["<|fim_pad|>", "a"], {"fim_pad": 1}, {"a"}),
    ],
)
def test_end_tokens_are_named_or_known_by_their_spelling(tokens: list[str], named: Any, expected: set[str]) -> None:
    assert found(tokens, **named) == expected


@pytest.mark.spec("MOD-59")
@pytest.mark.parametrize("key", ["eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"])
@pytest.mark.parametrize("number", [2, -1, (1 << 32) - 1])
def test_an_id_outside_the_vocabulary_counts_as_missing(
    key: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert found(["a", "b"], **{key: number}) == set()
    assert f"{key}_token_id is {number}" in caplog.text


def test_an_id_that_is_not_a_number_is_refused_by_its_key() -> None:
    with pytest.raises(ModelRefused, match="eos_token_id must be an id below 2"):
        found(["a", "b"], eos=True)


@pytest.mark.spec("MOD-44")
@pytest.mark.real_model
def test_the_real_model_ends_at_the_tokens_of_llama_cpp(smol_path: Path) -> None:
    with smol_path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert end_tokens(read_header(data).metadata, 49152) == {0, 2, 4}
