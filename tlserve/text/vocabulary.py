"""GGUF metadata -> a checked vocabulary.

Owns the types of the keys `tokenizer.ggml.*` and their limits. Does not know what the tokens mean to an algorithm. The metadata
is not trusted: any fault in it raises ModelRefused.

Source: the GGUF specification, "Tokenizer".
"""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

import attrs

from tlserve.errors import ModelRefused

MAX_TOKENS = 1 << 20
MAX_MERGES = 1 << 21
MAX_TOKEN_CHARS = 1 << 12
_PREFIX = "tokenizer.ggml."
_log = logging.getLogger("tlserve.text")


class TokenKind(enum.IntEnum):
    """The kinds of tokens, with GGUF's numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_KINDS = frozenset(TokenKind)
_CONTROLS = frozenset({TokenKind.CONTROL, TokenKind.UNKNOWN})


@attrs.frozen(kw_only=True)
class Vocabulary:
    """Tokens by id, with their kinds. No two have the same spelling; ids with an empty spelling are holes."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool = False

    def of_kinds(self, kinds: frozenset[TokenKind]) -> dict[str, int]:
        """Return spelling -> id of the tokens of `kinds`."""
        found = compress(enumerate(self.tokens), map(kinds.__contains__, self.kinds))  # few of a hundred thousand
        return {token: i for i, token in found if token}

    def control_tokens(self) -> dict[str, int]:
        """Return the tokens that have no visible text."""
        return self.of_kinds(_CONTROLS)

    def user_defined_tokens(self) -> dict[str, int]:
        """Return the tokens that match their own spelling as a whole."""
        return self.of_kinds(frozenset({TokenKind.USER_DEFINED}))

    def special_tokens(self) -> dict[str, int]:
        """Return the tokens that steer the model: control tokens, and user-defined tokens such as `<tool_call>`."""
        defined = self.user_defined_tokens().items()
        return self.control_tokens() | {spelling: i for spelling, i in defined if is_steering(spelling)}

    def text_tokens(self) -> list[str]:
        """Return the user-defined tokens that are ordinary text."""
        return [spelling for spelling in self.user_defined_tokens() if not is_steering(spelling)]

    def ids(self) -> dict[str, int]:
        """Return spelling -> id of all tokens."""
        return {token: i for i, token in enumerate(self.tokens) if token}


def is_steering(spelling: str) -> bool:
    """Say whether a user-defined token steers the model, as `<tool_call>` does.

    Runs of whitespace and single characters are text: their tokens are used wherever text spells them.
    """
    return len(spelling) > 1 and bool(spelling.replace("\u2581", "").strip())


def read_vocabulary(metadata: Mapping[str, object], *, add_bos: bool) -> Vocabulary:
    """Return the vocabulary of `metadata`; `add_bos` is the default if the metadata have none. Raises ModelRefused."""
    tokens = read_list(metadata, "tokens", str, most=MAX_TOKENS)
    if not tokens:
        raise ModelRefused(f"{_PREFIX}tokens is missing or empty")
    _check_spellings(tokens)
    kinds = read_list(metadata, "token_type", int, most=MAX_TOKENS) or [TokenKind.NORMAL] * len(tokens)
    if len(kinds) < len(tokens):
        raise ModelRefused(f"{_PREFIX}token_type has {len(kinds)} entries for {len(tokens)} tokens")
    kinds = [kind if kind in _KINDS else TokenKind.UNUSED for kind in kinds[: len(tokens)]]
    bos_id = read_token_id(metadata, "bos_token_id", len(tokens))
    eos_id = read_token_id(metadata, "eos_token_id", len(tokens))
    return Vocabulary(
        tokens=tokens,
        kinds=kinds,
        bos_id=bos_id,
        eos_id=eos_id,
        add_bos=read_flag(metadata, "add_bos_token", default=add_bos) and bos_id is not None,
        add_eos=read_flag(metadata, "add_eos_token", default=False) and eos_id is not None,
    )


def _check_spellings(tokens: Sequence[str]) -> None:
    if max(map(len, tokens)) > MAX_TOKEN_CHARS:
        raise ModelRefused(f"{_PREFIX}tokens has a token of more than {MAX_TOKEN_CHARS} characters")
    spelled = [token for token in tokens if token]
    if len(set(spelled)) != len(spelled):
        raise ModelRefused(f"{_PREFIX}tokens has the same token twice")
    try:
        "".join(spelled).encode()
    except UnicodeEncodeError as error:
        raise ModelRefused(f"{_PREFIX}tokens has a token that is not Unicode text") from error


def read_list(metadata: Mapping[str, object], key: str, kind: type | tuple[type, ...], *, most: int) -> list[Any]:
    """Return the list under `tokenizer.ggml.<key>`, empty where it is missing; all entries are of `kind`."""
    value = metadata.get(_PREFIX + key)
    if value is None:
        return []
    if hasattr(value, "__len__") and len(value) > most:
        raise ModelRefused(f"{_PREFIX}{key} has {len(value)} entries; at most {most} are read")
    values = _as_list(value, key)
    allowed = frozenset(kind if isinstance(kind, tuple) else (kind,))
    if not set(map(type, values)) <= allowed:
        raise ModelRefused(f"{_PREFIX}{key} has an entry of the wrong type")
    return values


def _as_list(value: object, key: str) -> list[Any]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise ModelRefused(f"{_PREFIX}{key} is not a list")
    return list(value)


def read_scores(metadata: Mapping[str, object], size: int) -> list[float]:
    """Return the score of each token; raises ModelRefused."""
    scores = read_list(metadata, "scores", (float, int), most=MAX_TOKENS)
    if len(scores) < size:
        raise ModelRefused(f"tokenizer.ggml.scores has {len(scores)} entries for {size} tokens")
    scores = scores[:size]
    if not all(map(math.isfinite, scores)):
        raise ModelRefused("tokenizer.ggml.scores has an entry that is not a finite number")
    return scores


def read_token_id(metadata: Mapping[str, object], key: str, size: int) -> int | None:
    """Return the id under `tokenizer.ggml.<key>`, or None; raises ModelRefused for what is not a number.

    An id outside the vocabulary counts as missing, with a warning, as in llama.cpp: some files have -1 there.
    """
    value = metadata.get(_PREFIX + key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelRefused(f"{_PREFIX}{key} is {str(value)[:32]}, not one of the {size} tokens")
    if not 0 <= value < size:
        _log.warning("%s%s is %d, not one of the %d tokens: ignored", _PREFIX, key, value, size)
        return None
    return value


def read_default_id(metadata: Mapping[str, object], key: str, size: int, default: int) -> int | None:
    """Return the id under `tokenizer.ggml.<key>`, else `default`; None if there is no such token."""
    found = read_token_id(metadata, key, size)
    return found if found is not None else default if default < size else None


def read_flag(metadata: Mapping[str, object], key: str, *, default: bool) -> bool:
    """Return the truth value under `tokenizer.ggml.<key>`, or `default`."""
    value = metadata.get(_PREFIX + key, default)
    if not isinstance(value, bool):
        raise ModelRefused(f"{_PREFIX}{key} is not true or false")
    return value


def read_text(metadata: Mapping[str, object], key: str, *, default: str) -> str:
    """Return the string under `tokenizer.ggml.<key>`, or `default`."""
    value = metadata.get(_PREFIX + key, default)
    if not isinstance(value, str):
        raise ModelRefused(f"{_PREFIX}{key} is not a string")
    return value
