"""Grammars are compiled while requests run, once each, within a time limit, and before admission."""

import contextlib
import threading
from functools import partial
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from tests.kit.engine.local_backend import make_local_backend
from tlserve.chat.dialect import FROM_NOTHING
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.grammars.answers import answer_grammar
from tlserve.chat.grammars.compiler import LlguidanceCompiler
from tlserve.chat.grammars.formats import choice_format, regex_format, schema_format
from tlserve.errors import ClientError, Draining, Overloaded, Refusal
from tlserve.generation import Finish, GenerationRequest, Grammar, TokenEvent
from tlserve.text.byte_tokenizer import ByteTokenizer
from tlserve.worker.grammars import GrammarLimits, Grammars

PATIENCE_S = 20.0
STOPS = frozenset({0})
TENANT = "key a"


@attrs.define(eq=False)
class GatedCompiler:
    """A compiler that waits for the test; it counts its grammars, and refuses one that is called bad."""

    compiled: list[tuple[str, object]] = attrs.field(factory=list)
    sources: list[str] = attrs.field(factory=list)
    begun: threading.Semaphore = attrs.field(factory=partial(threading.Semaphore, 0))
    gate: threading.Semaphore = attrs.field(factory=partial(threading.Semaphore, 0))

    def field(self, grammar):
        return f"the field of {grammar.source}"

    def compile(self, grammar, stop_ids):
        self.sources.append(grammar.source)
        self.begun.release()
        assert self.gate.acquire(timeout=PATIENCE_S)
        if grammar.source == "bad":
            raise ClientError("it is bad", param="regex")
        self.compiled.append((grammar.source, stop_ids))
        return Started(grammar.source)

    async def wait_begun(self):
        await trio.to_thread.run_sync(partial(self.begun.acquire, timeout=PATIENCE_S))

    def open(self, count=1):
        self.gate.release(count)


@attrs.define
class Started:
    source: str
    count: int = 0

    def start(self):
        self.count += 1
        return (self.source, self.count)


@pytest.fixture
def compiler():
    return GatedCompiler()


@pytest.mark.spec("API-82")
async def test_a_grammar_is_compiled_once_for_all_requests_that_share_it(compiler):
    grammars = Grammars(compiler, GrammarLimits())
    started: list[Any] = []

    async def start():
        started.append(await grammars.start(Grammar("a"), STOPS, TENANT))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(start)
        await compiler.wait_begun()
        compiler.open()
    await start()
    assert sorted(started) == [("a", 1), ("a", 2), ("a", 3), ("a", 4)]
    assert compiler.compiled == [("a", STOPS)]


@pytest.mark.spec("ACC-60")
@pytest.mark.parametrize("source", ["a", "bad"])
async def test_a_client_cannot_find_out_whether_another_key_sent_a_grammar(compiler, source):
    grammars = Grammars(compiler, GrammarLimits())
    compiler.open(2)
    for owner in ("ci", "other", "ci", "other"):
        with contextlib.suppress(ClientError):
            await grammars.start(Grammar(source), STOPS, TENANT, owner)
    assert compiler.sources == [source, source]


@pytest.mark.spec("API-82")
async def test_other_stop_ids_are_another_grammar(compiler):
    grammars = Grammars(compiler, GrammarLimits())
    compiler.open(2)
    await grammars.start(Grammar("a"), STOPS, TENANT)
    await grammars.start(Grammar("a"), frozenset({1}), TENANT)
    assert [stops for _, stops in compiler.compiled] == [STOPS, {1}]


@pytest.mark.spec("API-143")
async def test_only_the_latest_grammars_are_kept(compiler):
    grammars = Grammars(compiler, GrammarLimits(kept=2))
    compiler.open(10)
    for source in ("a", "b", "a", "c", "a", "b"):
        await grammars.start(Grammar(source), STOPS, TENANT)
    assert [source for source, _ in compiler.compiled] == ["a", "b", "c", "b"]


@pytest.mark.spec("API-82")
async def test_all_requests_with_a_bad_grammar_are_refused_after_one_try(compiler):
    grammars = Grammars(compiler, GrammarLimits())
    errors = []

    async def start():
        with pytest.raises(ClientError, match="it is bad") as caught:
            await grammars.start(Grammar("bad"), STOPS, TENANT)
        errors.append(caught.value)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(start)
        await compiler.wait_begun()
        await trio.testing.wait_all_tasks_blocked()
        compiler.open()
    assert [error.param for error in errors] == ["regex"] * 3
    assert not compiler.begun.acquire(blocking=False)


@pytest.mark.spec("API-82")
async def test_a_request_that_waited_for_a_cancelled_one_compiles_for_itself(compiler):
    grammars = Grammars(compiler, GrammarLimits())
    leaving = trio.CancelScope()
    started: list[Any] = []

    async def leave():
        with leaving:
            await grammars.start(Grammar("a"), STOPS, TENANT)

    async def stay():
        started.append(await grammars.start(Grammar("a"), STOPS, TENANT))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        await compiler.wait_begun()
        nursery.start_soon(stay)
        await trio.testing.wait_all_tasks_blocked()
        leaving.cancel()
        await compiler.wait_begun()
        compiler.open(2)
    assert started == [("a", 1)]


@pytest.mark.spec("API-82")
async def test_a_grammar_that_takes_too_long_is_refused_by_its_field(compiler):
    grammars = Grammars(compiler, GrammarLimits(time_s=0.05))
    with pytest.raises(ClientError, match="the field of a takes longer than") as caught:
        await grammars.start(Grammar("a"), STOPS, TENANT)
    assert caught.value.param == "the field of a"
    compiler.open()


@pytest.mark.spec("API-82")
async def test_a_grammar_that_gets_no_turn_is_refused_as_overloaded(compiler):
    grammars = Grammars(compiler, GrammarLimits(time_s=0.05, at_once=1))
    with pytest.raises(ClientError):
        await grammars.start(Grammar("a"), STOPS, TENANT)
    with pytest.raises(Overloaded):
        await grammars.start(Grammar("b"), STOPS, TENANT)
    compiler.open()


@pytest.mark.spec("API-82")
async def test_a_compiler_can_recurse_as_deep_as_its_grammar():
    """The library recurses over references; the stack of an ordinary thread would overflow here."""
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(4000)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**chain, "d4000": {"const": "b"}}}
    compiler = LlguidanceCompiler(ByteTokenizer(), 256, source_bytes=1 << 20)
    grammar = answer_grammar(schema_format(schema, "schema", "response_format"), None, PLAIN, FROM_NOTHING, {})
    assert grammar is not None
    constraint = await Grammars(compiler, GrammarLimits(time_s=PATIENCE_S)).start(grammar, STOPS, TENANT)
    assert constraint.mask()[1] == 1 << ord('"') - 32


@pytest.mark.spec("API-82")
async def test_a_failure_of_the_compiler_is_not_a_client_error(compiler):
    compiler.compiled = None
    compiler.open()
    with pytest.raises(AttributeError):
        await Grammars(compiler, GrammarLimits()).start(Grammar("a"), STOPS, TENANT)


@pytest.mark.spec("API-82")
async def test_without_a_compiler_grammars_are_refused_by_name():
    with pytest.raises(Refusal):
        await Grammars(None, GrammarLimits()).start(Grammar("a"), STOPS, TENANT)


@pytest.mark.spec("API-147")
async def test_one_tenants_grammars_do_not_delay_those_of_another(compiler):
    grammars = Grammars(compiler, GrammarLimits())
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(grammars.start, Grammar(f"a{number}"), STOPS, "key a")
        await compiler.wait_begun()
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(grammars.start, Grammar("b"), STOPS, "key b")
        await compiler.wait_begun()
        assert compiler.sources[1] == "b"
        compiler.open(6)
    assert len(compiler.compiled) == 6


@pytest.mark.spec("API-147")
async def test_a_grammar_that_waits_for_its_turn_does_not_delay_the_same_of_another_tenant(compiler):
    grammars = Grammars(compiler, GrammarLimits())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(grammars.start, Grammar("first"), STOPS, "key a")
        await compiler.wait_begun()
        nursery.start_soon(grammars.start, Grammar("common"), STOPS, "key a")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(grammars.start, Grammar("common"), STOPS, "key b")
        await compiler.wait_begun()
        assert compiler.sources[1] == "common"
        compiler.open(3)


# --- through the backend


def held_request(wanted, **more):
    grammar = answer_grammar(wanted, None, PLAIN, FROM_NOTHING, {})
    usual = {"prompt": (97,), "max_tokens": 8, "seed": 1, "stop_ids": STOPS}
    return GenerationRequest(**{**usual, **more}, grammar=grammar)


async def run_backend(nursery, compiler=None, **settings):
    backend = make_local_backend(
        compiler=compiler or LlguidanceCompiler(ByteTokenizer(), 256, source_bytes=9999), **settings
    )
    await nursery.start(backend.run)
    return backend


async def answer_of(backend, request):
    async with backend.generate(request) as tokens:
        events = [event async for batch in tokens for event in batch]
    return [event for event in events if isinstance(event, TokenEvent)]


@pytest.mark.spec("API-83")
async def test_an_answer_matches_its_grammar_and_ends_where_it_must():
    async with trio.open_nursery() as nursery:
        backend = await run_backend(nursery)
        events = await answer_of(backend, held_request(choice_format(["bee", "dog"], "choice")))
        assert bytes(event.token for event in events) == b"bee\0"
        assert events[-1].finish is Finish.STOP
        nursery.cancel_scope.cancel()


@pytest.mark.spec("API-83")
async def test_an_answer_that_the_limit_cuts_has_the_reason_length():
    async with trio.open_nursery() as nursery:
        backend = await run_backend(nursery)
        events = await answer_of(backend, held_request(choice_format(["bee"], "choice"), max_tokens=2))
        assert (bytes(event.token for event in events), events[-1].finish) == (b"be", Finish.LENGTH)
        nursery.cancel_scope.cancel()


@pytest.mark.spec("API-144")
async def test_drafts_do_not_change_an_answer_with_a_grammar():
    wanted = regex_format("([a-c]{3},){2,9}", "regex")
    request = held_request(wanted, prompt=tuple(b"abc,abc,bcc,cbc,abc,"), max_tokens=40)
    answers, drafted = [], []
    for speculative in ("none", "prompt_lookup"):
        async with trio.open_nursery() as nursery:
            backend = await run_backend(nursery, speculative=speculative)
            answers.append(await answer_of(backend, request))
            drafted.append(backend.statistics().drafted_tokens_total)
            nursery.cancel_scope.cancel()
    assert answers[0] == answers[1]
    assert drafted[0] == 0 < drafted[1]


@pytest.mark.spec("API-144")
async def test_an_answer_continues_from_tokens_emitted_elsewhere():
    async with trio.open_nursery() as nursery:
        backend = await run_backend(nursery)
        whole = held_request(choice_format(["bee"], "choice"))
        begun = held_request(choice_format(["bee"], "choice"), emitted=tuple(b"be"))
        assert await answer_of(backend, begun) == (await answer_of(backend, whole))[2:]
        nursery.cancel_scope.cancel()


@pytest.mark.spec("API-81")
async def test_a_bad_grammar_is_refused_before_anything_is_admitted():
    async with trio.open_nursery() as nursery:
        backend = await run_backend(nursery)
        with pytest.raises(ClientError, match="cannot be compiled"):
            await answer_of(backend, held_request(regex_format("a(", "regex")))
        assert backend.admitted == 0
        nursery.cancel_scope.cancel()


@pytest.mark.spec("API-82")
async def test_while_a_grammar_is_compiled_nothing_is_admitted_and_others_run(compiler):
    async with trio.open_nursery() as nursery:
        backend = await run_backend(nursery, compiler)
        nursery.start_soon(answer_of, backend, held_request(choice_format(["bee"], "choice")))
        await compiler.wait_begun()
        assert backend.admitted == 0
        assert len(await answer_of(backend, GenerationRequest(prompt=(97,), max_tokens=3, seed=0))) == 3
        compiler.open()
        nursery.cancel_scope.cancel()


@pytest.mark.spec("API-82")
async def test_a_full_or_closed_backend_compiles_nothing(compiler):
    async with trio.open_nursery() as nursery:
        backend = await run_backend(nursery, compiler, admission=0)
        with pytest.raises(Overloaded):
            await answer_of(backend, held_request(choice_format(["bee"], "choice")))
        backend.close()
        with pytest.raises(Draining):
            await answer_of(backend, held_request(choice_format(["bee"], "choice")))
        assert not compiler.begun.acquire(blocking=False)
        nursery.cancel_scope.cancel()
