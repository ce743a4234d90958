"""The compiler of grammars for one model: the checks before the library compiles, and the place of an error after it refuses.

Owns the size limit, the layout of JSON, and the messages for grammars that cannot be compiled. Knows nothing of threads and
requests. The library is imported for the first grammar.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tlserve.chat.dialect import PlacedSchema
from tlserve.chat.grammars.recursion import subschemas
from tlserve.chat.grammars.source import COMPACT, GrammarSource, parse_source
from tlserve.errors import ClientError
from tlserve.generation import Grammar
from tlserve.text.tokenizer import SpelledTokens

if TYPE_CHECKING:
    from tlserve.chat.grammars.masks import LlguidanceGrammar, MaskMaker

_MAX_PROBES = 64
_OUR_LINE = re.compile(r"^(?:at )?[0-9]+\([0-9]+\): ")


class LlguidanceCompiler:
    """Compiles grammars for one tokenizer. Safe for use by several threads at once."""

    def __init__(self, tokenizer: SpelledTokens, vocabulary_size: int, *, source_bytes: int) -> None:
        """`vocabulary_size` is the number of the model's logits; grammars of more than `source_bytes` are refused."""
        self.tokenizer = tokenizer
        self.vocabulary_size = vocabulary_size
        self.source_bytes = source_bytes

    @functools.cached_property
    def _maker(self) -> MaskMaker:
        from tlserve.chat.grammars.masks import MaskMaker

        return MaskMaker(self.tokenizer, self.vocabulary_size)

    def warm_up(self) -> None:
        """Do what does not depend on a grammar; takes some tenths of a second once."""
        self._fault({"type": "string"})

    def field(self, grammar: Grammar) -> str:
        """Return the field of the request that asked for `grammar`."""
        return parse_source(grammar).field

    def compile(self, grammar: Grammar, stop_ids: frozenset[int]) -> LlguidanceGrammar:
        """Return `grammar` compiled, its first mask made; raises ClientError with the field, the place and the reason."""
        source = parse_source(grammar)
        self._check_size(source, grammar)
        if not stop_ids:
            words = f"{source.field} needs a token that ends the answer, and the model has none; send stop_token_ids"
            raise ClientError(words, param=source.field)
        made = self._maker.make(_library_text(source), stop_ids)
        if isinstance(made, str):
            raise self._refusal(source, made)
        return made

    def _check_size(self, source: GrammarSource, grammar: Grammar) -> None:
        size = len(grammar.source.encode())
        if size > self.source_bytes:
            words = f"{source.field} makes a grammar of {size} bytes; the limit is {self.source_bytes} bytes"
            raise ClientError(words, param=source.field)

    def _refusal(self, source: GrammarSource, reason: str) -> ClientError:
        place, reason = source.field, reason if source.larks else _OUR_LINE.sub("", reason)
        for placed in source.schemas.values():
            if (found := self._blame(placed)) is not None:
                place, reason = found
                break
        return ClientError(f"{place} cannot be compiled: {reason}", param=source.field)

    def _blame(self, placed: PlacedSchema) -> tuple[str, str] | None:
        """Return the place of the innermost schema that cannot be compiled, and the reason; None if each one can."""
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
        made = self._maker.make(json.dumps({"grammars": [{"json_schema": schema}]}), frozenset())
        return made if isinstance(made, str) else ""


def _library_text(source: GrammarSource) -> str:
    larks = ({"name": name, "lark_grammar": lark} for name, lark in source.larks.items())
    schemas = ({"name": name, "json_schema": _laid_out(own)} for name, own in source.schemas.items())
    grammars = [{"name": "answer_rules", "lark_grammar": source.rules}, *larks, *schemas]
    return json.dumps({"grammars": grammars}, ensure_ascii=False)


def _laid_out(placed: PlacedSchema) -> dict[str, Any]:
    options: dict[str, Any] = {"whitespace_pattern": placed.blanks} if placed.blanks else {"whitespace_flexible": False}
    schema = placed.schema if isinstance(placed.schema, Mapping) else {}
    return {**schema, "x-guidance": COMPACT if placed.blanks is None else options}
