"""Grammars -> masks, by llguidance.

Owns the vocabulary as llguidance sees it, the words of what cannot be compiled, and the constraint of one sequence. Refuses to
know threads and requests. Slow to import; whoever needs it imports it late.

Control tokens, and tokens that steer a dialect's reader, are special to the library: no text matches them, only a rule of ours
that names one. One id behind the vocabulary stands for "the answer may end here"; the request's own stop ids take its place.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from tlserve.chat.dialect import PlacedSchema
from tlserve.chat.grammars.recursion import subschemas
from tlserve.chat.grammars.source import GrammarSource, parse_source
from tlserve.errors import ClientError
from tlserve.generation import Grammar
from tlserve.text.tokenizer import Tokenizer

COMPACT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""How JSON is laid out: one line, with at most one space behind each comma and colon."""

_LIMITS = LLParserLimits(verbose_errors=False, initial_lexer_fuel=250_000)
"""A quarter of the library's own fuel: a hostile regular expression is given up after some tenths of a second."""

_MAX_PROBES = 64
_REASON_CHARS = 300
_REHEARSED_TOKENS = 64


class _Vocabulary:
    """The tokens as `LLTokenizer` asks for them."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        known = range(tokenizer.vocabulary_size)
        silent = {token for token in known if not tokenizer.token_bytes(token)}
        self._tokenizer = tokenizer
        self.eos_token_id = size
        self.tokens = [*map(tokenizer.token_spelling, known), *[b""] * (size - len(known)), b"<end>"]
        self.special_token_ids = sorted({*silent, *tokenizer.special_tokens.values(), *range(len(known), size + 1)})

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode(errors="replace"))


class LlguidanceCompiler:
    """Compiles grammars for one tokenizer; any number of threads may at once."""

    def __init__(self, tokenizer: Tokenizer, vocabulary_size: int, *, source_bytes: int) -> None:
        """`vocabulary_size` is that of the model's logits; grammars of more than `source_bytes` are refused."""
        self._tokenizer = tokenizer
        self._size = vocabulary_size
        self._source_bytes = source_bytes

    @functools.cached_property
    def _library(self) -> LLTokenizer:
        vocabulary: Any = _Vocabulary(self._tokenizer, self._size)
        return LLTokenizer(vocabulary, n_vocab=self._size + 1, eos_token=self._size)

    def field(self, grammar: Grammar) -> str:
        """Return the field of the request that asked for `grammar`."""
        return parse_source(grammar).field

    def compile(self, grammar: Grammar, stop_ids: frozenset[int]) -> LlguidanceGrammar:
        """Return `grammar` compiled, its first mask made; raises ClientError with the field, the place and the reason."""
        source = parse_source(grammar)
        self._check_size(source, grammar)
        if not stop_ids:
            raise ClientError(
                f"{source.field} needs a token that ends the answer, and there is none", param=source.field
            )
        matcher, trouble = self._try(_library_text(source))
        if trouble:
            raise self._refusal(source, trouble)
        return LlguidanceGrammar(matcher, _Layout.of(self._size, stop_ids))

    def _check_size(self, source: GrammarSource, grammar: Grammar) -> None:
        size = len(grammar.source.encode())
        if size > self._source_bytes:
            words = f"{source.field} makes a grammar of {size} bytes, and at most {self._source_bytes} are taken"
            raise ClientError(words, param=source.field)

    def _try(self, text: str) -> tuple[LLMatcher, str]:
        """Return the compiled text, and why it cannot be used, or ""; what shows only as it runs is looked for, too."""
        matcher = LLMatcher(self._library, text, log_level=0, limits=_LIMITS)
        trial = matcher.deep_copy()
        _rehearse(trial, self._size)
        return matcher, _reason(trial) if trial.is_error() else ""

    def _refusal(self, source: GrammarSource, reason: str) -> ClientError:
        place = source.field
        for placed in source.schemas.values():
            if (found := self._blame(placed)) is not None:
                place, reason = found
                break
        return ClientError(f"{place} cannot be compiled: {reason}", param=source.field)

    def _blame(self, placed: PlacedSchema) -> tuple[str, str] | None:
        """Return the place of the innermost schema that cannot be compiled by itself, and why; None if all can."""
        if not isinstance(placed.schema, Mapping):
            return None
        probes = iter(range(_MAX_PROBES))
        shared = {name: placed.schema[name] for name in ("$defs", "definitions") if name in placed.schema}
        reason = self._fault(placed.schema)
        place, schema = placed.place, placed.schema
        while reason:
            inner = next(self._faulty_parts(schema, shared, probes), None)
            if inner is None:
                return place, reason
            path, schema, reason = inner
            place += path
        return None

    def _faulty_parts(
        self, schema: Mapping[str, Any], shared: Mapping[str, Any], probes: Iterator[int]
    ) -> Iterator[tuple[str, Any, str]]:
        definitions_first = sorted(
            subschemas(schema), key=lambda inner: not inner[0].startswith((".$defs", ".definitions"))
        )
        for path, part in definitions_first:
            if not isinstance(part, Mapping) or next(probes, None) is None:
                continue
            if reason := self._fault({**part, **shared}):
                yield path, part, reason

    def _fault(self, schema: Any) -> str:
        return self._try(json.dumps({"grammars": [{"json_schema": schema}]}))[1]


def _rehearse(matcher: LLMatcher, size: int) -> None:
    """Let `matcher` go through the beginning of one answer, always the same; trouble leaves it in its error state."""
    choices = random.Random(0)
    for _ in range(_REHEARSED_TOKENS):
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        going = np.flatnonzero(np.unpackbits(mask, bitorder="little")[:size])
        if not len(going) or not matcher.consume_token(int(choices.choice(going))):
            return


def _library_text(source: GrammarSource) -> str:
    larks = ({"name": name, "lark_grammar": lark} for name, lark in source.larks.items())
    schemas = ({"name": name, "json_schema": _laid_out(own)} for name, own in source.schemas.items())
    grammars = [{"name": "answer_rules", "lark_grammar": source.rules}, *larks, *schemas]
    return json.dumps({"grammars": grammars}, ensure_ascii=False)


def _laid_out(placed: PlacedSchema) -> dict[str, Any]:
    options = COMPACT if placed.blanks is None else {"whitespace_pattern": placed.blanks}
    schema = placed.schema if isinstance(placed.schema, Mapping) else {}
    return {**schema, "x-guidance": options}


def _reason(matcher: LLMatcher) -> str:
    """Return why nothing can come next, in the library's words where it has any that help."""
    words = matcher.get_error().partition("\n<")[0].partition("\n  while processing")[0].strip()
    if words.startswith("oneOf"):
        return "the alternatives of its oneOf may overlap; send anyOf, or give each a constant of its own"
    return words[:_REASON_CHARS] or "no text matches it"


@attrs.frozen(eq=False)
class _Layout:
    """Where the bits of a mask are: words of the vocabulary, the word and bit of the end, and the stop ids' bits by word."""

    words: int
    all_words: int
    end_word: int
    end_bit: int
    stops: frozenset[int]
    stop_bits: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, size: int, stop_ids: frozenset[int]) -> _Layout:
        bits: dict[int, int] = {}
        for token in stop_ids:
            bits[token // 32] = bits.get(token // 32, 0) | 1 << token % 32
        return cls((size + 31) // 32, (size + 32) // 32, size // 32, 1 << size % 32, stop_ids, tuple(bits.items()))


@attrs.frozen(eq=False)
class LlguidanceGrammar:
    """A compiled grammar, of which any number of constraints can be started; what one finds out serves all."""

    _matcher: LLMatcher
    _layout: _Layout

    def start(self) -> LlguidanceConstraint:
        """Return a fresh constraint."""
        return LlguidanceConstraint(self._matcher.deep_copy(), self._layout)


class LlguidanceConstraint:
    """`TokenConstraint` of one sequence. The masks that it returns are the caller's to keep."""

    def __init__(self, matcher: LLMatcher, layout: _Layout) -> None:
        self._matcher = matcher
        self._layout = layout
        self._ended = False

    def mask(self) -> NDArray[np.uint32]:
        """Return the allowed ids; raises RuntimeError where the library gives up."""
        layout = self._layout
        words = np.empty(layout.all_words, np.uint32)
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        may_end = bool(words[layout.end_word] & layout.end_bit)
        if not may_end and self._matcher.is_error():
            raise RuntimeError(self._matcher.get_error())
        words[layout.end_word] &= ~np.uint32(layout.end_bit)
        for word, bits in layout.stop_bits:
            words[word] = words[word] | bits if may_end else words[word] & ~np.uint32(bits)
        return words[: layout.words]

    def accept(self, token: int) -> None:
        """Advance over `token`; raises RuntimeError if the mask did not allow it."""
        if self._ended:
            raise RuntimeError("nothing follows the end of an answer")
        if token in self._layout.stops:
            self._ended = True
        elif not self._matcher.consume_token(token):
            raise RuntimeError(self._matcher.get_error())

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens; raises RuntimeError where there are not so many."""
        if count and self._ended:
            self._ended = False
            count -= 1
        if count and not self._matcher.rollback(count):
            raise RuntimeError(self._matcher.get_error())
