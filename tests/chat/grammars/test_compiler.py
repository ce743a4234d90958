"""A constraint allows the stop ids exactly where the answer can end, takes tokens back, and says why it cannot be made."""

import random
import subprocess
import sys

import numpy as np
import pytest

from tests.kit.chat.constrained_walks import allowed, compiled, stops_of, take_text, walk, walk_tokenizer
from tlserve.chat.dialect import FROM_NOTHING
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.grammars.answers import answer_grammar
from tlserve.chat.grammars.compiler import LlguidanceCompiler
from tlserve.chat.grammars.formats import choice_format, regex_format, schema_format
from tlserve.chat.grammars.source import parse_source
from tlserve.errors import ClientError
from tlserve.text.byte_tokenizer import ByteTokenizer

TOKENIZER = walk_tokenizer()
(STOP,) = STOPS = stops_of(TOKENIZER)


def grammar_of(wanted):
    return answer_grammar(wanted, None, PLAIN, FROM_NOTHING, {})


def constraint_of(wanted, stop_ids=STOPS, tokenizer=TOKENIZER):
    return compiled(grammar_of(wanted), tokenizer, stop_ids).start()


@pytest.mark.spec("CHAT-47")
def test_stop_ids_are_allowed_exactly_where_the_answer_can_end() -> None:
    a, b = ord("a"), ord("b")
    constraint = constraint_of(regex_format("a(bb)*", "regex"), frozenset({0, 255}), ByteTokenizer())
    seen = [(allowed(constraint), constraint.accept(token))[0] for token in (a, b, b)]
    assert seen == [[a], [0, b, 255], [b]]
    assert allowed(constraint) == [0, b, 255]


@pytest.mark.spec("CHAT-47")
def test_where_the_answer_must_end_only_stop_ids_are_allowed() -> None:
    constraint = constraint_of(choice_format(["no"], "choice"), frozenset({1, 2}))
    assert take_text(constraint, TOKENIZER, "no")
    assert allowed(constraint) == [1, 2]
    constraint.accept(2)
    with pytest.raises(RuntimeError, match="no token can follow"):
        constraint.accept(1)


@pytest.mark.spec("CHAT-70")
def test_a_stop_id_that_is_text_is_not_allowed_inside_an_answer() -> None:
    stop = ord("b")
    constraint = constraint_of(regex_format("ab*c", "regex"), frozenset({stop}), ByteTokenizer())
    constraint.accept(ord("a"))
    assert allowed(constraint) == [ord("c")]
    constraint.accept(ord("c"))
    assert allowed(constraint) == [stop]


@pytest.mark.spec("CHAT-48")
@pytest.mark.parametrize("seed", range(5))
def test_tokens_that_are_taken_back_leave_no_trace(seed) -> None:
    schema = {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 4}
    compiled_grammar = compiled(grammar_of(schema_format(schema, "schema", "response_format")), TOKENIZER)
    rng = random.Random(seed)
    walked = walk(compiled_grammar.start(), TOKENIZER, STOPS, rng)
    assert walked is not None
    tokens = [*walked, STOP]
    straight, winding = compiled_grammar.start(), compiled_grammar.start()
    for index, token in enumerate(tokens):
        assert np.array_equal(straight.mask(), winding.mask())
        straight.accept(token)
        ahead = tokens[index : index + rng.randrange(1, 4)]
        for drafted in ahead:
            winding.accept(drafted)
        winding.rollback(len(ahead))
        winding.accept(token)


@pytest.mark.spec("CHAT-48")
def test_constraints_of_one_grammar_are_independent() -> None:
    grammar = compiled(grammar_of(choice_format(["ab", "cd"], "choice")), TOKENIZER)
    one, other = grammar.start(), grammar.start()
    before = allowed(other)
    assert take_text(one, TOKENIZER, "ab")
    assert allowed(other) == before


@pytest.mark.spec("CHAT-48")
def test_the_caller_can_keep_a_mask_which_has_a_word_for_every_32_ids() -> None:
    constraint = constraint_of(choice_format(["ab"], "choice"))
    first = constraint.mask()
    kept = first.copy()
    assert take_text(constraint, TOKENIZER, "ab")
    constraint.mask()
    assert np.array_equal(first, kept)
    assert (first.dtype, len(first)) == (np.uint32, -(-TOKENIZER.vocabulary_size // 32))


@pytest.mark.spec("CHAT-46")
@pytest.mark.parametrize("more", [0, 1, 31, 40])
def test_ids_unknown_to_the_tokenizer_are_never_allowed(more) -> None:
    size = TOKENIZER.vocabulary_size + more
    compiler = LlguidanceCompiler(TOKENIZER, size, source_bytes=1000)
    constraint = compiler.compile(grammar_of(regex_format("(?s:.*)", "regex")), STOPS).start()
    assert max(allowed(constraint)) < TOKENIZER.vocabulary_size
    assert len(constraint.mask()) == -(-size // 32)


@pytest.mark.spec("CHAT-48")
def test_a_token_that_was_not_allowed_is_an_error() -> None:
    constraint = constraint_of(choice_format(["ab"], "choice"))
    with pytest.raises(RuntimeError):
        constraint.accept(TOKENIZER.encode("z")[0])


@pytest.mark.spec("CHAT-47")
def test_a_grammar_without_an_end_is_refused() -> None:
    with pytest.raises(ClientError, match="choice needs a token that ends the answer"):
        constraint_of(choice_format(["ab"], "choice"), frozenset())


@pytest.mark.spec("CHAT-49")
def test_a_grammar_that_is_too_large_is_refused_with_both_sizes() -> None:
    compiler = LlguidanceCompiler(TOKENIZER, TOKENIZER.vocabulary_size, source_bytes=100)
    grammar = grammar_of(choice_format(["x" * 100], "choice"))
    with pytest.raises(ClientError, match=rf"choice makes a grammar of {len(grammar.source)} bytes; the limit is 100"):
        compiler.compile(grammar, STOPS)


@pytest.mark.spec("CHAT-49")
def test_a_source_is_a_text_with_the_field_that_asked_for_it() -> None:
    grammar = grammar_of(schema_format({"const": "é"}, "the.place", "response_format", "[ \\n]{0,2}"))
    source = parse_source(grammar)
    assert (source.field, source.grammar()) == ("response_format", grammar)
    assert LlguidanceCompiler(TOKENIZER, 400, source_bytes=1).field(grammar) == "response_format"
    (placed,) = source.schemas.values()
    assert (placed.place, placed.schema, placed.blanks) == ("the.place", {"const": "é"}, "[ \\n]{0,2}")


@pytest.mark.spec("CHAT-49")
def test_the_library_is_imported_for_the_first_grammar() -> None:
    code = "import sys, tlserve.programs.local_models, tlserve.endpoints.api; print('llguidance' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"
