"""GGUF metadata of the kind "gemma4" -> a BPE tokenizer over characters, in which U+2581 is a space.

Makes the library's model from tokens and merges, with byte tokens for what they cannot spell. Lines are encoded apart from the
newlines between them. Some files of the kind "gpt2" have such a vocabulary under a name of their own for the pre-tokenizer; with
`mmbert` a line begins with a space, and each space begins a word.

Source: `llama-vocab.cpp` of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tlserve.text.byte_alphabets import SPACE, literal_bytes, sentencepiece_bytes
from tlserve.text.kinds.gpt2 import read_merges
from tlserve.text.kinds.sentencepiece import byte_tokens
from tlserve.text.library_tokenizer import LibraryTokenizer, TextFrame, build_in_library
from tlserve.text.tokenizer import MODEL, Tokenizer
from tlserve.text.vocabulary import Vocabulary, read_text, read_vocabulary

MMBERT = "mmbert"
BEGINS_WITH_BOS = frozenset({"gemma4", "granite-embed-multi-311m"})
"""The names whose prompts begin with BOS whatever the flag in the file says: some files have it wrong."""


def build(metadata: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer; raises ModelRefused."""
    pre = "gemma4" if metadata.get(MODEL) == "gemma4" else read_text(metadata, "pre", default="")
    vocabulary = read_vocabulary(metadata, add_bos=False)
    bytes_of = byte_tokens(vocabulary)
    merges = read_merges(metadata, vocabulary.ids())
    library = build_in_library("the BPE merges", lambda: _library(vocabulary, merges, in_words=pre == MMBERT))
    controls = vocabulary.control_tokens()
    pieces = literal_bytes(vocabulary.tokens, list(map(sentencepiece_bytes, vocabulary.tokens)), controls)
    for token, byte in bytes_of.items():
        pieces[token] = bytes((byte,))
    begins = pre in BEGINS_WITH_BOS and vocabulary.bos_id is not None
    return LibraryTokenizer(
        library,
        pieces=pieces,
        special=vocabulary.special_tokens(),
        hidden=frozenset(controls.values()),
        frame=TextFrame(
            bos_id=vocabulary.bos_id,
            eos_id=vocabulary.eos_id,
            add_bos=begins or vocabulary.add_bos,
            add_eos=vocabulary.add_eos,
        ),
    )


def _library(vocabulary: Vocabulary, merges: list[tuple[str, str]], *, in_words: bool) -> Any:
    from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Library

    library = Library(models.BPE(vocab=vocabulary.ids(), merges=merges, byte_fallback=True))
    spaces, lines = normalizers.Replace(" ", SPACE), pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), "isolated")
    library.normalizer, library.pre_tokenizer = spaces, lines
    if in_words:
        begins = [
            normalizers.Prepend(SPACE),
            normalizers.Replace(Regex(rf"\A{SPACE}(?=[\n{SPACE}])"), ""),
            normalizers.Replace(Regex(rf"\n(?=[^\n{SPACE}])"), f"\n{SPACE}"),
        ]
        library.normalizer = normalizers.Sequence([spaces, *begins])
        library.pre_tokenizer = pre_tokenizers.Sequence([lines, pre_tokenizers.Split(SPACE, "merged_with_next")])
    library.add_tokens([AddedToken(spelling, normalized=False) for spelling in vocabulary.text_tokens()])
    return library
