"""An independent validator accepts every answer that a schema's masks allow: random answers without a model.

`TLSERVE_WALKS=20000 python -m pytest tests/chat/grammars/test_random_walks.py` tries 20000 schemas instead of a few.
"""

import contextlib
import datetime
import json
import os
import random

import hypothesis
import jsonschema_rs
import pytest

from tests.kit.chat.constrained_walks import spell, stops_of, walk, walk_tokenizer
from tests.kit.chat.json_schemas import faults, schemas
from tlserve.chat.dialect import FROM_NOTHING
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.grammars.answers import answer_grammar
from tlserve.chat.grammars.compiler import LlguidanceCompiler
from tlserve.chat.grammars.formats import schema_format
from tlserve.chat.grammars.keywords import FORMATS
from tlserve.errors import ClientError

TOKENIZER = walk_tokenizer()
STOPS = stops_of(TOKENIZER)
COMPILER = LlguidanceCompiler(TOKENIZER, TOKENIZER.vocabulary_size, source_bytes=1 << 20)
EXAMPLES = int(os.environ.get("TLSERVE_WALKS", "100"))


def grammar_of(schema):
    return answer_grammar(schema_format(schema, "schema", "response_format"), None, PLAIN, FROM_NOTHING, {})


def answers(schema, rng, count):
    grammar = COMPILER.compile(grammar_of(schema), STOPS)
    for _ in range(count):
        tokens = walk(grammar.start(), TOKENIZER, STOPS, rng, limit=600)
        if tokens is not None:
            yield spell(TOKENIZER, tokens).decode()


@pytest.mark.spec("CASE-25", "CHAT-41")
@hypothesis.settings(max_examples=EXAMPLES, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(schemas(), hypothesis.strategies.randoms(use_true_random=False))
def test_every_answer_that_the_masks_of_a_schema_allow_is_valid(schema, rng) -> None:
    with contextlib.suppress(ClientError):  # refused, because served answers must be right
        for text in answers(schema, rng, 3):
            assert faults(schema, text) == [], text


@pytest.mark.spec("CHAT-41")
def test_impossible_dates_are_not_allowed() -> None:
    dates = [f"{year:04}-{month:02}-{day:02}" for year in (0, 1, 4, 100, 400, 1900, 2000, 2023, 2024, 9996)
             for month in range(1, 13) for day in range(1, 32)]  # fmt: skip
    constraint = COMPILER.compile(grammar_of({"type": "string", "format": "date"}), STOPS).start()
    for text in dates:
        tokens = TOKENIZER.encode(f'"{text}"')
        assert (taken(constraint, tokens) == len(tokens)) == is_date(text), text


def taken(constraint, tokens) -> int:
    """Return how many of `tokens` a constraint accepts, and restore it."""
    count = 0
    while count < len(tokens) and constraint.mask()[tokens[count] // 32] >> tokens[count] % 32 & 1:
        constraint.accept(tokens[count])
        count += 1
    constraint.rollback(count)
    return count


def is_date(text) -> bool:
    with contextlib.suppress(ValueError):
        return bool(datetime.date.fromisoformat(text))
    return False


@pytest.mark.spec("CHAT-41")
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_format_allows_only_valid_values(name) -> None:
    schema = {"type": "string", "format": name}
    judge = jsonschema_rs.validator_for(schema, validate_formats=True)
    texts = list(answers(schema, random.Random(name), 60))
    assert len(texts) > 40
    assert [text for text in texts if not judge.is_valid(json.loads(text))] == []
