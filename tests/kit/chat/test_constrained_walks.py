"""A walk takes any token that a mask allows, and ends where it can."""

import random

from tests.kit.chat.constrained_walks import allowed, compiled, spell, stops_of, take_text, walk, walk_tokenizer
from tlserve.chat.grammars.source import GrammarSource
from tlserve.generation import CompiledGrammar

TOKENIZER = walk_tokenizer(user_defined=("<x>",))
STOPS = stops_of(TOKENIZER)


def grammar_of(rules: str) -> CompiledGrammar:
    return compiled(GrammarSource(field="f", rules=rules).grammar(), TOKENIZER)


def test_walks_reach_every_allowed_token() -> None:
    grammar, rng = grammar_of('start: "a" | "b"'), random.Random(3)
    texts = {spell(TOKENIZER, walk(grammar.start(), TOKENIZER, STOPS, rng)) for _ in range(40)}
    assert texts == {b"a", b"b"}


def test_a_walk_without_an_end_is_none() -> None:
    assert walk(grammar_of("start: /a{50}/").start(), TOKENIZER, STOPS, random.Random(1), limit=5) is None


def test_a_walk_contains_its_phrases() -> None:
    lark = 'start: end\nend[lazy]: TEXT "</rare>"\nTEXT: /(?s:.*)/'
    rng = random.Random(2)
    tokens = walk(grammar_of(lark).start(), TOKENIZER, STOPS, rng, phrases=("</rare>",))
    assert spell(TOKENIZER, tokens).endswith(b"</rare>")


def test_a_text_is_accepted_as_far_as_allowed_with_special_tokens() -> None:
    (special,) = {TOKENIZER.special_tokens["<x>"]}
    grammar = grammar_of(f'start: "ab" <[{special}]>')
    assert take_text(grammar.start(), TOKENIZER, "ab<x>")
    constraint = grammar.start()
    assert not take_text(constraint, TOKENIZER, "ac")
    assert spell(TOKENIZER, allowed(constraint)) == b"b"
