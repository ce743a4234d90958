"""GGUF metadata of the kind "gpt2" -> a byte-level BPE tokenizer.

Makes the library's model from the tokens and merges. `tlserve.text.kinds.pre_tokenizers` owns the cuts into words.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tlserve.errors import ModelRefused
from tlserve.text.byte_alphabets import byte_level_bytes, literal_bytes
from tlserve.text.kinds.pre_tokenizers import PreTokenizer, library_pre_tokenizer, pre_tokenizer
from tlserve.text.library_tokenizer import LibraryTokenizer, TextFrame, build_in_library, whole
from tlserve.text.pieces import allows_cuts, pieces_of
from tlserve.text.tokenizer import Tokenizer
from tlserve.text.vocabulary import MAX_MERGES, Vocabulary, read_list, read_text, read_vocabulary

_log = logging.getLogger("tlserve.text")


def build(metadata: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer; raises ModelRefused."""
    pre = pre_tokenizer(_pre_name(metadata))
    vocabulary = read_vocabulary(metadata, add_bos=pre.add_bos)
    merges = read_merges(metadata, vocabulary.ids())
    library = build_in_library("the BPE merges", lambda: _library(vocabulary, merges, pre))
    controls, defined = vocabulary.control_tokens(), vocabulary.user_defined_tokens()
    return LibraryTokenizer(
        library,
        pieces=literal_bytes(vocabulary.tokens, list(map(byte_level_bytes, vocabulary.tokens)), controls | defined),
        special=vocabulary.special_tokens(),
        hidden=frozenset(controls.values()),
        frame=TextFrame(
            bos_id=vocabulary.bos_id, eos_id=vocabulary.eos_id, add_bos=vocabulary.add_bos, add_eos=vocabulary.add_eos
        ),
        cuts=pieces_of if allows_cuts(vocabulary.text_tokens()) else whole,
    )


def _pre_name(metadata: Mapping[str, object]) -> str:
    """Return the name of the pre-tokenizer; old files have none, which is worth a warning."""
    name = read_text(metadata, "pre", default="")
    if not name:
        _log.warning(
            "tokenizer.ggml.pre is missing: text is cut into words by the default of llama.cpp, which may not be the model's "
            "own; answers can be worse, convert the model again"
        )
    return name or "default"


def read_merges(metadata: Mapping[str, object], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the pairs of `tokenizer.ggml.merges`, the first one first; raises ModelRefused."""
    lines = read_list(metadata, "merges", str, most=MAX_MERGES)
    if metadata.get("tokenizer.ggml.merges") is None:
        raise ModelRefused("tokenizer.ggml.merges is missing")
    merges = []
    for line in lines:  # written flat: a vocabulary has a hundred thousand
        at = line.find(" ", 1)  # the first space that is not the first character
        left, right = line[:at], line[at + 1 :]
        if not (at > 0 and left in ids and right in ids and left + right in ids):
            raise ModelRefused(f"tokenizer.ggml.merges has {line[:64]!r}, whose parts or whole are not tokens")
        merges.append((left, right))
    return merges


def _library(vocabulary: Vocabulary, merges: list[tuple[str, str]], pre: PreTokenizer) -> Any:
    from tokenizers import AddedToken, models
    from tokenizers import Tokenizer as Library

    library = Library(models.BPE(vocab=vocabulary.ids(), merges=merges, ignore_merges=pre.whole_words))
    library.pre_tokenizer = library_pre_tokenizer(pre)
    library.add_tokens([AddedToken(spelling, normalized=False) for spelling in vocabulary.text_tokens()])
    return library
