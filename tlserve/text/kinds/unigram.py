"""GGUF metadata of the kind "t5" -> a unigram tokenizer: the tokens of a text are those with the best sum of scores.

Owns what happens to a text before: runs of spaces, and the space before a text; `charsmap` has the file's own replacements.
Tokens that text cannot become have a spelling in the library that no text has.

Source: `llm_tokenizer_ugm` of llama.cpp's `llama-vocab.cpp`; SentencePiece's normalisation rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from os.path import commonprefix
from typing import Any

import numpy as np

from tlserve.errors import ModelRefused
from tlserve.text.byte_alphabets import SPACE, literal_bytes, sentencepiece_bytes
from tlserve.text.kinds.charsmap import Charsmap
from tlserve.text.library_tokenizer import LibraryTokenizer, TextFrame, build_in_library
from tlserve.text.tokenizer import Tokenizer
from tlserve.text.vocabulary import (
    TokenKind,
    Vocabulary,
    read_default_id,
    read_flag,
    read_scores,
    read_vocabulary,
)

EOS, UNKNOWN = 1, 2
"""The ids in T5's own vocabulary, which files leave out."""

MOST_PREFIXES = 1_500_000
"""The different beginnings of tokens, of which the library keeps each in some 330 bytes; XLM-RoBERTa has 780,000."""

_MATCHED = frozenset({TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.UNUSED})
_NO_TEXT = "\ufdd0"


def build(metadata: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer; raises ModelRefused."""
    vocabulary = read_vocabulary(metadata, add_bos=False)
    size = len(vocabulary.tokens)
    unknown = read_default_id(metadata, "unknown_token_id", size, UNKNOWN)
    if unknown is None:
        raise ModelRefused("tokenizer.ggml.unknown_token_id is missing, and the vocabulary is not T5's own")
    scores = read_scores(metadata, size)
    _check_memory(vocabulary.tokens)
    normalizer = _Normalizer(metadata)
    library = build_in_library("the unigram tokens", lambda: _library(vocabulary, scores, unknown, normalizer))
    controls = vocabulary.control_tokens()
    eos_id = read_default_id(metadata, "eos_token_id", size, EOS)
    add_eos = read_flag(metadata, "add_eos_token", default=True) and eos_id is not None
    return LibraryTokenizer(
        library,
        pieces=literal_bytes(vocabulary.tokens, list(map(sentencepiece_bytes, vocabulary.tokens)), controls),
        special=vocabulary.special_tokens(),
        hidden=frozenset(controls.values()),
        frame=TextFrame(bos_id=vocabulary.bos_id, eos_id=eos_id, add_bos=vocabulary.add_bos, add_eos=add_eos),
        unknown=unknown,
        cuts=normalizer.pieces,
    )


def _check_memory(tokens: Sequence[str]) -> None:
    """Refuse tokens that would take far more memory in the library than in the file."""
    spelled = sorted(token.encode() for token in tokens)
    prefixes = sum(map(len, spelled))
    if prefixes > MOST_PREFIXES:
        prefixes -= sum(
            len(commonprefix(pair))  # noqa: RUF071 - of characters, as it is meant
            for pair in pairwise(spelled)
        )
    if prefixes > MOST_PREFIXES:
        raise ModelRefused(
            f"tokenizer.ggml.tokens have {prefixes} different beginnings; at most {MOST_PREFIXES} are read"
        )


class _Normalizer:
    """The rules of the metadata for a text before it is encoded."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self.charsmap = _charsmap(metadata.get("tokenizer.ggml.precompiled_charsmap"))
        self.prefix = read_flag(metadata, "add_space_prefix", default=False)
        self.merges = read_flag(metadata, "remove_extra_whitespaces", default=False)

    def pieces(self, text: str) -> Iterable[str]:
        """Return the text with its replacements, as its only piece."""
        return (self.charsmap.replaced(text) if self.charsmap else text,)

    def library(self) -> Any:
        """Return the library's form."""
        from tokenizers import Regex, normalizers

        parts: list[Any] = []
        if self.merges:
            edges, runs = normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" +"), " ")
            parts += [edges, runs]
        if self.prefix or self.merges:
            parts.append(normalizers.Replace(Regex(r"\A(?= *[^ ])"), SPACE))
        return normalizers.Sequence([*parts, normalizers.Replace(" ", SPACE)])


def _charsmap(value: object) -> Charsmap | None:
    """Return the table of replacements, None where there is none; raises ModelRefused."""
    if value is None:
        return None
    if not isinstance(value, np.ndarray) or value.dtype not in (np.int8, np.uint8):
        raise ModelRefused("tokenizer.ggml.precompiled_charsmap is not an array of bytes")
    return Charsmap(value.tobytes())


def _library(vocabulary: Vocabulary, scores: list[float], unknown: int, normalizer: _Normalizer) -> Any:
    from tokenizers import AddedToken, models
    from tokenizers import Tokenizer as Library

    matched = vocabulary.of_kinds(_MATCHED)
    steering = vocabulary.special_tokens()
    defined = vocabulary.user_defined_tokens()
    pieces = [
        (token, 0.0 if token in defined else score)
        if token in matched and token not in steering
        else (f"{_NO_TEXT}{i}", 0.0)
        for i, (token, score) in enumerate(zip(vocabulary.tokens, scores, strict=True))
    ]
    library = Library(models.Unigram(pieces, unk_id=unknown, byte_fallback=False))
    library.normalizer = normalizer.library()
    library.add_tokens([AddedToken(spelling, normalized=False) for spelling in vocabulary.text_tokens()])
    return library
