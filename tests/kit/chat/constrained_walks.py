"""Random answers under a grammar: tokens drawn at random from each mask, without a model.

Every allowed token can be drawn, likely or not. After a while a walk prefers tokens that close something, so that it ends.
A walk that does not end within its limit is None.
"""

from __future__ import annotations

import random

import numpy as np

from tests.kit.model.tiny_tokenizers import gpt2_metadata
from tlserve.chat.grammars.compiler import LlguidanceCompiler
from tlserve.generation import CompiledGrammar, Grammar, TokenConstraint
from tlserve.text.tokenizer import Tokenizer, build_tokenizer

END = "<|im_end|>"
CONTROL = ("<|endoftext|>", "<|im_start|>", END)
CLOSERS = frozenset(b'"}])>')
HURRY_AFTER = (0, 5, 40)


def walk_tokenizer(control: tuple[str, ...] = (), user_defined: tuple[str, ...] = ()) -> Tokenizer:
    """Return a small tokenizer of bytes and merges with `END` and further special tokens."""
    return build_tokenizer(gpt2_metadata(control=(*CONTROL, *control), user_defined=user_defined))


def stops_of(tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset({tokenizer.special_tokens[END]})


def compiled(grammar: Grammar, tokenizer: Tokenizer, stop_ids: frozenset[int] | None = None) -> CompiledGrammar:
    """Return the grammar compiled for the tokenizer."""
    compiler = LlguidanceCompiler(tokenizer, tokenizer.vocabulary_size, source_bytes=1 << 20)
    return compiler.compile(grammar, stops_of(tokenizer) if stop_ids is None else stop_ids)


def allowed(constraint: TokenConstraint) -> list[int]:
    """Return the ids that the mask allows."""
    return np.flatnonzero(np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")).tolist()


def spell(tokenizer: Tokenizer, tokens: list[int] | None) -> bytes:
    assert tokens is not None
    return b"".join(map(tokenizer.token_spelling, tokens))


def take_text(constraint: TokenConstraint, tokenizer: Tokenizer, text: str) -> bool:
    """Advance over `text`, with special tokens read as such; return False at the first token that is not allowed."""
    return len(_say(constraint, tokenizer, text)) == len(tokenizer.encode_with_specials(text))


def walk(
    constraint: TokenConstraint,
    tokenizer: Tokenizer,
    stop_ids: frozenset[int],
    rng: random.Random,
    *,
    limit: int = 2000,
    phrases: tuple[str, ...] = (),
) -> list[int] | None:
    """Return the tokens of one random answer, without its stop; None if it did not end within `limit` tokens.

    From time to time it tries one of `phrases`, which random draws would hardly find.
    """
    tokens: list[int] = []
    hurry = rng.choice(HURRY_AFTER)
    while len(tokens) < limit:
        ids = allowed(constraint)
        assert ids, f"a dead end after {spell(tokenizer, tokens)!r}"
        going = [token for token in ids if token not in stop_ids]
        if len(going) < len(ids) and (not going or rng.random() < 0.3 or len(tokens) > hurry):
            return tokens
        if phrases and rng.random() < 0.1:
            tokens += _say(constraint, tokenizer, rng.choice(phrases))
            continue
        closing = [token for token in going if CLOSERS.intersection(tokenizer.token_spelling(token))]
        hurries = closing and len(tokens) > hurry and rng.random() < 0.8
        token = rng.choice(closing if hurries else going)
        constraint.accept(token)
        tokens.append(token)
    return None


def _say(constraint: TokenConstraint, tokenizer: Tokenizer, phrase: str) -> list[int]:
    """Advance over as many tokens of `phrase` as are allowed, and return them."""
    said: list[int] = []
    for token in tokenizer.encode_with_specials(phrase):
        if token not in allowed(constraint):
            break
        constraint.accept(token)
        said.append(token)
    return said
