"""GGUF metadata of the kind "bert" -> a WordPiece tokenizer.

GGUF spells a token that begins a word with U+2581, and one that continues a word plainly; the library has them the other way
round, with "##". Words that cannot be spelled become the unknown token.

Source: `llm_tokenizer_wpm` of llama.cpp's `llama-vocab.cpp`, and the converter's `phantom` spaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tlserve.errors import ModelRefused
from tlserve.text.byte_alphabets import SPACE, literal_bytes, sentencepiece_bytes
from tlserve.text.library_tokenizer import LibraryTokenizer, TextFrame, build_in_library
from tlserve.text.tokenizer import Tokenizer
from tlserve.text.vocabulary import Vocabulary, read_default_id, read_flag, read_vocabulary

BOS, UNKNOWN, SEPARATOR = 101, 100, 102
"""The ids in BERT's own vocabulary, which files leave out."""


def build(metadata: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer; raises ModelRefused."""
    vocabulary = read_vocabulary(metadata, add_bos=True)
    size = len(vocabulary.tokens)
    unknown = read_default_id(metadata, "unknown_token_id", size, UNKNOWN)
    if unknown is None:
        raise ModelRefused("tokenizer.ggml.unknown_token_id is missing, and the vocabulary is not BERT's own")
    lower = read_flag(metadata, "normalizer.lowercase", default=True)
    accents = read_flag(metadata, "normalizer.strip_accents", default=lower)
    library = build_in_library("the WordPiece tokens", lambda: _library(vocabulary, unknown, lower, accents))
    controls = vocabulary.control_tokens()
    bos_id = read_default_id(metadata, "bos_token_id", size, BOS)
    separator = read_default_id(metadata, "seperator_token_id", size, SEPARATOR)
    return LibraryTokenizer(
        library,
        pieces=literal_bytes(vocabulary.tokens, list(map(sentencepiece_bytes, vocabulary.tokens)), controls),
        special=vocabulary.special_tokens(),
        hidden=frozenset(controls.values()),
        frame=TextFrame(bos_id=bos_id, eos_id=separator, add_bos=bos_id is not None, add_eos=separator is not None),
        unknown=unknown,
    )


def _library(vocabulary: Vocabulary, unknown: int, lower: bool, accents: bool) -> Any:
    from tokenizers import AddedToken, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Library

    special = vocabulary.special_tokens()
    spelled = {_spelled(token, token in special): i for token, i in vocabulary.ids().items()}
    longest = 1 << 20  # the library gives up on longer words; llama.cpp does not
    model = models.WordPiece(spelled, unk_token=vocabulary.tokens[unknown], max_input_chars_per_word=longest)
    library = Library(model)
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=accents, lowercase=lower
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.add_tokens([AddedToken(spelling, normalized=False) for spelling in vocabulary.text_tokens()])
    return library


def _spelled(token: str, is_special: bool) -> str:
    """Return the library's spelling of a token."""
    if is_special:
        return token
    return token[1:] if token.startswith(SPACE) and len(token) > 1 else "##" + token
