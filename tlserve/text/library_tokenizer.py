"""A tokenizer that runs in the `tokenizers` package, with the parts that the package does not have.

Owns the safety of special tokens and the bytes of each token. Does not know the source of the vocabulary: the builders (`gpt2`,
`sentencepiece`, `huggingface`) give it a library tokenizer without special tokens, and the special tokens separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import attrs

from tlserve.errors import ModelRefused, ServerFault
from tlserve.text.pieces import check_wanted
from tlserve.text.special_tokens import Piece, SpecialTokens

LONG_CHARACTERS = 4096
"""Encoding a longer text takes more than a millisecond, which is too long to keep all other threads waiting."""


@attrs.frozen(kw_only=True)
class TextFrame:
    """The ids around a text. `add_bos`: a prompt begins with `bos_id`; `add_eos`: a text to embed ends with `eos_id`."""

    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool = False


def whole(text: str) -> Iterable[str]:
    """Return the text as its only piece."""
    return (text,)


class LibraryTokenizer:
    """The `Tokenizer` protocol over `tokenizers.Tokenizer`.

    `pieces` are the bytes of every id; `hidden` are the control tokens among them, which add nothing to visible text. `inner` is
    the library tokenizer for text that does not begin a prompt, if that is encoded differently (only the beginning gets a space).
    `unknown` is the id of any unknown word: it is special, but ordinary text can have it. Characters that the vocabulary cannot
    spell are left out, as in the library and llama.cpp. `cuts` gives the pieces of a text that can be encoded one by one,
    as the library gets them.
    """

    def __init__(
        self,
        library: Any,
        *,
        pieces: Sequence[bytes],
        special: Mapping[str, int],
        hidden: frozenset[int],
        frame: TextFrame,
        trims: Mapping[int, Callable[[str], str]] = MappingProxyType({}),
        trims_before: frozenset[int] = frozenset(),
        inner: Any = None,
        unknown: int | None = None,
        cuts: Callable[[str], Iterable[str]] = whole,
    ) -> None:
        self._library = library
        self._cuts = cuts
        self._inner = library if inner is None else inner
        self._pieces = pieces
        self._hidden = hidden
        self._special = SpecialTokens(special)
        self._kept_out = self._special.id_set - {unknown}
        self._trims = trims
        self._trims_before = trims_before
        self.vocabulary_size = len(pieces)
        self.longest_token_bytes = max(1, max(map(len, pieces), default=1))
        self.special_tokens: Mapping[str, int] = MappingProxyType(self._special.ids)
        self.bos_id = frame.bos_id
        self.eos_id = frame.eos_id
        self.add_bos = frame.add_bos
        self.add_eos = frame.add_eos

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text` as ordinary text."""
        return self._encode(self._library, text)

    def _encode(self, library: Any, text: str) -> list[int]:
        return [token for piece in self._cuts(_unicode(text)) for token in self._encode_piece(library, piece)]

    def _encode_piece(self, library: Any, text: str) -> list[int]:
        if len(text) > LONG_CHARACTERS:
            found: list[int] = _encoded(library, text, with_offsets=False).ids
            if self._kept_out.isdisjoint(found):
                return found
        encoding = _encoded(library, text)
        ids: list[int] = encoding.ids
        if self._kept_out.isdisjoint(ids):
            return ids
        return self._encode_apart(library, text, ids, encoding.offsets)

    def _encode_apart(self, library: Any, text: str, ids: list[int], offsets: list[tuple[int, int]]) -> list[int]:
        """Encode again in parts, cut inside each token that is a special one.

        A part is shorter than the text that it was cut from, so this ends; a single character that is left is dropped.
        """
        specials = [place for place, token in enumerate(ids) if token in self._kept_out]
        cuts = [begin + 1 if begin + 1 < end else end for begin, end in map(offsets.__getitem__, specials)]
        bounds = sorted({0, len(text), *cuts})
        if len(bounds) <= 2:
            return [token for token in ids if token not in self._kept_out]
        parts = [self._encode(self._inner if start else library, text[start:end]) for start, end in pairwise(bounds)]
        return [token for part in parts for token in part]

    def encode_with_specials(self, text: str, *, origin: str = "") -> list[int]:
        """Return the ids of `text`, including the special tokens that `origin` permits."""
        ids: list[int] = []
        trim: Callable[[str], str] | None = None
        library = self._library
        for piece in self._trimmed(self._special.split(text, origin)):
            check_wanted()
            if isinstance(piece, int):
                ids.append(piece)
                trim = self._trims.get(piece)
            else:
                ids.extend(self._encode(library, trim(piece) if trim else piece))
                trim = None
            library = self._inner
        return ids

    def _trimmed(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield the pieces, a text without the spaces at its end where the token after it takes them."""
        waiting: str | None = None
        for piece in pieces:
            if waiting is not None:
                yield waiting.rstrip() if piece in self._trims_before else waiting
            waiting = piece if isinstance(piece, str) else None
            if not isinstance(piece, str):
                yield piece
        if waiting is not None:
            yield waiting

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that `token` adds to the visible text; raises IndexError."""
        return b"" if token in self._hidden else self.token_spelling(token)

    def token_spelling(self, token: int) -> bytes:
        """Return the bytes that spell `token`; raises IndexError."""
        if not 0 <= token < self.vocabulary_size:
            raise IndexError(f"there is no token {token}")
        return self._pieces[token]


def _encoded(library: Any, text: str, *, with_offsets: bool = True) -> Any:
    """Return the library's encoding; raises ServerFault, also for a panic, which is not an `Exception`.

    A long text is encoded as a batch of one, because the library lets other threads run only during a batch, and a megabyte takes
    half a second. Without the offsets of the tokens it needs a third less time and memory.
    """
    try:
        if len(text) > LONG_CHARACTERS:
            encode = library.encode_batch if with_offsets else library.encode_batch_fast
            return encode([text], add_special_tokens=False)[0]
        return library.encode(text, add_special_tokens=False)
    except BaseException as error:
        if not _is_of_the_library(error):
            raise
        raise ServerFault("the tokenizer of this model failed on the text") from error


def _is_of_the_library(error: BaseException) -> bool:
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def build_in_library(what: str, build: Callable[[], Any]) -> Any:
    """Return `build()`; any error of the library, including a panic, becomes ModelRefused."""
    try:
        return build()
    except BaseException as error:
        if not _is_of_the_library(error):
            raise
        raise ModelRefused(f"{what}: {str(error)[:200]}") from error
