"""The protocol of a tokenizer, and the choice of the tokenizer for a model's metadata.

Owns the protocol, the choice between the builders, and the rule for BOS and EOS. Knows nothing of files: the metadata is a
mapping with GGUF's key names. Each kind of vocabulary has its own module, which is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol

from tlserve.errors import ModelRefused

MODEL = "tokenizer.ggml.model"
PRE = "tokenizer.ggml.pre"
HUGGINGFACE = "tokenizer.huggingface.json"


class SpelledTokens(Protocol):
    """The part of a tokenizer that masks need: the spelling of each token."""

    @property
    def vocabulary_size(self) -> int:
        """Return the number of ids, holes included."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Return spelling -> id, the longest spelling first."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text` as ordinary text: never a special token, even if the text spells one; no BOS."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that `token` adds to the visible text: b"" for a control token. Raises IndexError."""

    def token_spelling(self, token: int) -> bytes:
        """Return the bytes that spell `token`, also for a control token. Raises IndexError."""


class Tokenizer(SpelledTokens, Protocol):
    """Text to token ids and back. Ids are below `vocabulary_size`. Safe for use by several threads at once.

    `special_tokens` maps the spelling of each control token, and of each user-defined token that is more than whitespace or
    one character, to its id, the longest spelling first. `add_bos` says that a prompt begins with `bos_id`,
    `add_eos` that a text to be embedded ends with `eos_id`.
    """

    @property
    def bos_id(self) -> int | None:
        """Return the id that begins a text, or None."""

    @property
    def eos_id(self) -> int | None:
        """Return the id that ends a text, or None."""

    @property
    def add_bos(self) -> bool:
        """Say whether a prompt begins with `bos_id`."""

    @property
    def add_eos(self) -> bool:
        """Say whether a text to be embedded ends with `eos_id`."""

    @property
    def longest_token_bytes(self) -> int:
        """Return the number of bytes in the longest spelling of a token, at least 1."""

    def encode_with_specials(self, text: str, *, origin: str = "") -> list[int]:
        """Return the ids of `text`, with special tokens where it spells them; no BOS.

        `origin` has a letter for each character of `text`: a spelling is a special token only if all its letters are
        `tlserve.text.special_tokens.TEMPLATE`, and else ordinary text. Without letters every spelling is a special token.
        """


_BUILDERS: Mapping[str, str] = {
    "bert": "tlserve.text.kinds.word_piece",
    "bytes": "tlserve.text.byte_tokenizer",
    "gemma4": "tlserve.text.kinds.gemma4",
    "gpt2": "tlserve.text.kinds.gpt2",
    "llama": "tlserve.text.kinds.sentencepiece",
    "t5": "tlserve.text.kinds.unigram",
}

OVER_CHARACTERS = frozenset({"gemma4", "granite-embed-multi-311m", "mmbert", "sarvam-moe"})
"""The names of `tokenizer.ggml.pre` with which a vocabulary of the kind "gpt2" is one of the kind "gemma4"."""


def build_tokenizer(metadata: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer that `metadata` describes.

    `tokenizer.huggingface.json` (the text of a tokenizer.json) takes precedence over `tokenizer.ggml.model`. Raises ModelRefused
    with the reason for metadata that are missing, damaged or not supported.
    """
    if HUGGINGFACE in metadata:
        return _build("tlserve.text.huggingface", metadata)
    kind = metadata.get(MODEL)
    if not isinstance(kind, str) or kind not in _BUILDERS:
        known = ", ".join(sorted(_BUILDERS))
        raise ModelRefused(f"{MODEL} is {str(kind)[:64]!r}, which is not supported (supported: {known})")
    pre = metadata.get(PRE)
    if kind == "gpt2" and isinstance(pre, str) and pre in OVER_CHARACTERS:
        kind = "gemma4"
    return _build(_BUILDERS[kind], metadata)


def _build(module: str, metadata: Mapping[str, object]) -> Tokenizer:
    tokenizer: Tokenizer = import_module(module).build(metadata)
    return tokenizer


def fewest_tokens(tokenizer: Tokenizer, characters: int) -> int:
    """Return a number of tokens that a text of this length cannot be below, without encoding it.

    A character has at least one byte, also after a normalizer has composed several of them, and no token spells more bytes than
    the longest one. Texts of which a vocabulary leaves out most can have fewer; a model is not made for them.
    """
    return -(-characters // tokenizer.longest_token_bytes)


def spelling_of(tokenizer: Tokenizer, token: int | None) -> str:
    """Return the text that spells `token`, also a control token, or "" for None."""
    return "" if token is None else tokenizer.token_spelling(token).decode(errors="replace")


def with_bos(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """Return `ids` with BOS first if the model needs it; never a second BOS."""
    bos = tokenizer.bos_id
    return [bos, *ids] if tokenizer.add_bos and bos is not None and ids[:1] != [bos] else ids


def framed(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """Return the ids of a whole text to be embedded: `ids` between BOS and EOS ([CLS], [SEP]), each if the model needs it."""
    framed_ids = with_bos(tokenizer, ids)
    return [*framed_ids, tokenizer.eos_id] if tokenizer.add_eos and tokenizer.eos_id is not None else framed_ids
