"""GGUF metadata of the kind "llama" -> a SentencePiece BPE tokenizer.

Makes merges from scores: two neighbours join if their union is a token, the best score first. The library needs ranked pairs, so
each way to cut a token into two other tokens becomes a pair, in the order of the token's score.

Source: the SentencePiece paper, section 3.1; byte fallback as in sentencepiece's `--byte_fallback`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from tlserve.errors import ModelRefused
from tlserve.text.byte_alphabets import SPACE, byte_value, literal_bytes, sentencepiece_bytes
from tlserve.text.library_tokenizer import LibraryTokenizer, TextFrame, build_in_library, whole
from tlserve.text.pieces import allows_cuts, pieces_of
from tlserve.text.tokenizer import Tokenizer
from tlserve.text.vocabulary import (
    TokenKind,
    Vocabulary,
    read_flag,
    read_scores,
    read_vocabulary,
)

MAX_MERGED_CHARS = 256


def build(metadata: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer; raises ModelRefused."""
    vocabulary = read_vocabulary(metadata, add_bos=True)
    bytes_of = byte_tokens(vocabulary)
    merges = _merges(vocabulary, read_scores(metadata, len(vocabulary.tokens)))
    prefix = read_flag(metadata, "add_space_prefix", default=True)
    library = build_in_library("the SentencePiece merges", lambda: _library(vocabulary, merges, prefix=prefix))
    controls = vocabulary.control_tokens()
    pieces = literal_bytes(vocabulary.tokens, list(map(sentencepiece_bytes, vocabulary.tokens)), controls)
    for token, byte in bytes_of.items():
        pieces[token] = bytes((byte,))
    return LibraryTokenizer(
        library,
        pieces=pieces,
        special=vocabulary.special_tokens(),
        hidden=frozenset(controls.values()),
        frame=TextFrame(
            bos_id=vocabulary.bos_id, eos_id=vocabulary.eos_id, add_bos=vocabulary.add_bos, add_eos=vocabulary.add_eos
        ),
        cuts=_cuts_of_text(vocabulary, prefix=prefix),
    )


def _cuts_of_text(vocabulary: Vocabulary, *, prefix: bool) -> Callable[[str], Iterable[str]]:
    """Return how texts are cut: nowhere if a token can lie across a space; `prefix` says that the library adds the first one."""
    words, texts = vocabulary.of_kinds(frozenset({TokenKind.NORMAL})), vocabulary.text_tokens()
    if not (allows_cuts(words, SPACE) and allows_cuts(texts) and allows_cuts(texts, SPACE)):
        return whole
    return partial(pieces_of, keeps_space=not prefix)


def byte_tokens(vocabulary: Vocabulary) -> dict[int, int]:
    """Return id -> byte; all 256 bytes are needed, or text outside the vocabulary could not be encoded."""
    spelled = vocabulary.of_kinds(frozenset({TokenKind.BYTE}))
    bytes_of = {i: value for token, i in spelled.items() if (value := byte_value(token)) is not None}
    if set(bytes_of.values()) != set(range(256)) or not all(f"<0x{byte:02X}>" in spelled for byte in range(256)):
        raise ModelRefused("the vocabulary does not have all 256 byte tokens <0x00> to <0xFF>")
    return bytes_of


def _merges(vocabulary: Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    ids = vocabulary.of_kinds(frozenset({TokenKind.NORMAL}))
    ranked = sorted(ids.items(), key=lambda item: (-scores[item[1]], item[1]))
    return [pair for token, _ in ranked if len(token) <= MAX_MERGED_CHARS for pair in _cuts(token, ids)]


def _cuts(token: str, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
    return sorted((cut for cut in cuts if cut[0] in ids and cut[1] in ids), key=lambda cut: (ids[cut[0]], ids[cut[1]]))


def _library(vocabulary: Vocabulary, merges: list[tuple[str, str]], *, prefix: bool) -> Any:
    from tokenizers import AddedToken, models, normalizers
    from tokenizers import Tokenizer as Library

    library = Library(models.BPE(vocab=vocabulary.ids(), merges=merges, byte_fallback=True))
    spaces = normalizers.Replace(" ", SPACE)
    library.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    library.add_tokens([AddedToken(spelling, normalized=not prefix) for spelling in vocabulary.text_tokens()])
    return library
