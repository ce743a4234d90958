"""Metadata of small vocabularies, as in a GGUF file, and slow encoders that are the truth for them.

`gpt2_metadata` has the 256 bytes, merges learned from a sentence, and first the special tokens that a test requests.
`llama_metadata` has the 256 byte tokens, the letters, and pieces with scores.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tlserve.text.byte_alphabets import BYTE_CHARACTERS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, _UNUSED, BYTE = range(1, 7)
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NASTY = ("ab", "abab", "aba", "<a>", "<a><b>", "><", "<<", ">>>", "a\nb", "<|im_start|>", "<|im_end|>", "|>|>")
"""Special tokens that overlap, contain each other, begin with the end of others, and contain words and white space."""

SENTENCE = "the theatre there, then the other; system user assistant im start end a b ab <a> the the"
_CHARACTER = {byte: character for character, byte in BYTE_CHARACTERS.items()}


def spell_bytes(data: bytes) -> str:
    """Return `data` in GPT-2's alphabet."""
    return "".join(_CHARACTER[byte] for byte in data)


def gpt2_metadata(
    *, control: Iterable[str] = CHATML, user_defined: Iterable[str] = (), pre: str = "gpt-2", **more: object
) -> dict[str, Any]:
    """Return metadata of the kind "gpt2"; keys in `more` replace others under `tokenizer.ggml.`."""
    control, user_defined = list(control), list(user_defined)
    merges = learn_merges(SENTENCE, 40)
    steering = [*control, *user_defined]
    plain = [*BYTE_CHARACTERS, *dict.fromkeys(left + right for left, right in merges)]
    plain = [token for token in plain if token not in steering]
    known = set(plain)
    values: dict[str, object] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": steering + plain,
        "token_type": [CONTROL] * len(control) + [USER_DEFINED] * len(user_defined) + [NORMAL] * len(plain),
        "merges": [f"{left} {right}" for left, right in merges if {left, right, left + right} <= known],
    }
    return prefixed({**values, **more})


def llama_metadata(pieces: dict[str, float], **more: object) -> dict[str, Any]:
    """Return metadata of the kind "llama": unknown, BOS, EOS, the byte tokens, then `pieces` with their scores."""
    head = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL} | {f"<0x{byte:02X}>": BYTE for byte in range(256)}
    values: dict[str, object] = {
        "model": "llama",
        "tokens": [*head, *pieces],
        "token_type": [*head.values(), *([NORMAL] * len(pieces))],
        "scores": [0.0] * len(head) + list(pieces.values()),
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return prefixed({**values, **more})


def prefixed(values: dict[str, object]) -> dict[str, Any]:
    """Return `values` under GGUF's names; None removes a key."""
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def learn_merges(text: str, count: int) -> list[tuple[str, str]]:
    """Return the merges that byte-pair training finds in the words of `text`."""
    words = [list(spell_bytes(word.encode())) for word in text.replace(" ", "\0 ").split("\0")]
    merges: list[tuple[str, str]] = []
    for _ in range(count):
        pairs = Counter(pair for word in words for pair in itertools.pairwise(word))
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        words = [merge_pair(word, best) for word in words]
    return merges


def merge_pair(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    """Return `symbols` with every occurrence of `pair` joined, from the left."""
    merged: list[str] = []
    for symbol in symbols:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return merged


def slow_bpe(symbols: list[str], merges: list[tuple[str, str]]) -> list[str]:
    """Return `symbols` after all merges, the best ranked pair first."""
    while True:
        pairs = [pair for pair in itertools.pairwise(symbols) if pair in merges]
        if not pairs:
            return symbols
        symbols = merge_pair(symbols, min(pairs, key=merges.index))


def slow_sentencepiece(text: str, scores: dict[str, float]) -> list[str]:
    """Return the pieces of `text`: of all neighbours whose union is a piece, the best score joins first, then the leftmost."""
    symbols = list(text.replace(" ", "\u2581"))
    while True:
        unions = [(-scores[a + b], at) for at, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in scores]
        if not unions:
            return symbols
        at = min(unions)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
