"""Grammars are compiled in a process that can be ended: their cost is measured, and too expensive ones are refused by name."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio

from tests.kit.chat.hostile_schemas import KINDS, hostile_schemas
from tlserve.admission.fair_places import FairPlaces
from tlserve.chat.dialect import FROM_NOTHING
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.grammars.answers import answer_grammar
from tlserve.chat.grammars.compiler import LlguidanceCompiler
from tlserve.chat.grammars.formats import schema_format
from tlserve.config.settings import EngineSettings
from tlserve.errors import ClientError, Overloaded
from tlserve.generation import Grammar
from tlserve.programs.grammars.start import check_program
from tlserve.text.byte_tokenizer import ByteTokenizer
from tlserve.worker.grammars import GrammarLimits, Grammars

STOPS = frozenset({0})
TENANT = "key a"
PATIENCE_S = 120.0


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give checks more wall time: the program runs at the lowest priority, after all other tests. Processor time still counts."""
    monkeypatch.setattr("tlserve.worker.grammars._WALL_FREE_S", PATIENCE_S)


def grammar_of(schema: dict[str, Any]) -> Grammar:
    grammar = answer_grammar(schema_format(schema, "schema", "response_format"), None, PLAIN, FROM_NOTHING, {})
    assert grammar is not None
    return grammar


def counted(count: int) -> dict[str, Any]:
    properties = {f"p{index}": {"type": "string"} for index in range(count)}
    return {"type": "object", "properties": properties, "additionalProperties": False, "minProperties": 1}


@asynccontextmanager
async def checked(**limits: Any) -> AsyncIterator[Grammars]:
    """Run grammars with the real program for the block."""
    compiler = LlguidanceCompiler(ByteTokenizer(), 256, source_bytes=EngineSettings().grammar_bytes)
    grammars = Grammars(compiler, GrammarLimits(**limits), check_program(compiler))
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(grammars.run)
            yield grammars
            nursery.cancel_scope.cancel()


def pid_of(grammars: Grammars) -> int:
    assert grammars.checker_pid is not None
    return grammars.checker_pid


async def refusal(grammars: Grammars, schema: dict[str, Any]) -> str:
    with pytest.raises(ClientError) as caught:
        await grammars.start(grammar_of(schema), STOPS, TENANT)
    assert caught.value.param == "response_format"
    return caught.value.message


async def test_a_grammar_that_passes_is_compiled_and_kept() -> None:
    async with checked() as grammars:
        for _ in range(2):
            constraint = await grammars.start(grammar_of({"const": "b"}), STOPS, TENANT)
            assert constraint.mask()[1] == 1 << ord('"') - 32


async def test_a_grammar_that_takes_too_much_memory_is_refused_by_name() -> None:
    async with checked() as grammars:
        assert "MB of memory to compile" in await refusal(grammars, counted(600))
        await grammars.start(grammar_of({"const": "b"}), STOPS, TENANT)


async def test_a_grammar_that_takes_too_much_time_is_refused_by_name() -> None:
    async with checked(time_s=0.2, memory_bytes=64 << 30) as grammars:
        assert "takes more than 0.2 s to compile" in await refusal(grammars, {"type": "integer", "multipleOf": 1000003})


async def test_the_compilers_own_refusal_names_the_place() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(" * 50}}, "required": ["a"]}
    async with checked() as grammars:
        assert "schema.properties.a" in await refusal(grammars, schema)


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False, "required": [*properties]}


def nested(levels: int, inner: dict[str, Any], properties: int) -> dict[str, Any]:
    for level in range(levels):
        plain = {f"p{level}_{index}": {"type": "string"} for index in range(properties - 1)}
        inner = closed({"inner": inner, **plain})
    return inner


def many(schema: dict[str, Any]) -> dict[str, Any]:
    return closed({f"a_property_name_{index}": schema for index in range(5000)})


NULL = {"type": "null"}
LARGE = [
    (many({"type": "string"}), b'{"a_property_name_0": "x"'),
    (many({"type": ["string", "null"]}), b'{"a_property_name_0": null'),
    (many({"anyOf": [{"type": "string"}, NULL]}), b'{"a_property_name_0": null'),
    (nested(10, {"type": "string"}, 500), b'{"inner": {"inner": {"inner": {"inner": {"inner": {"inner"'),
    (closed({"one": {"enum": [f"value number {index}" for index in range(1000)]}}), b'{"one": "value number 999"}'),
    (closed({f"e{n}": {"enum": [f"v{n}_{index}" for index in range(100)]} for n in range(10)}), b'{"e0": "v0_99"'),
]
"""What is allowed elsewhere: 5,000 properties, ten levels, 1,000 values of enumerations; each with a beginning of an answer."""


@pytest.mark.spec("API-148")
@pytest.mark.parametrize(("schema", "beginning"), LARGE)
async def test_large_schemas_are_served_within_the_default_limits(schema: dict[str, Any], beginning: bytes) -> None:
    async with checked() as grammars:
        constraint = await grammars.start(grammar_of(schema), STOPS, TENANT)
        for byte in beginning:
            assert constraint.mask()[byte // 32] >> byte % 32 & 1
            constraint.accept(byte)


async def test_600_optional_properties_are_served() -> None:
    schema = counted(600)
    del schema["minProperties"]
    async with checked(time_s=20, mask_s=10) as grammars:
        constraint = await grammars.start(grammar_of(schema), STOPS, TENANT)
        for byte in b'{"p599": "x"}':
            constraint.accept(byte)


async def test_a_refused_grammar_is_refused_again_without_a_check() -> None:
    async with checked() as grammars:
        first = await refusal(grammars, counted(600))
        assert grammars.checks_made == 1
        assert await refusal(grammars, counted(600)) == first
        assert grammars.checks_made == 1


async def test_a_program_that_dies_is_replaced() -> None:
    async with checked() as grammars:
        await grammars.start(grammar_of({"const": "a"}), STOPS, TENANT)
        os.kill(pid_of(grammars), signal.SIGKILL)
        await grammars.start(grammar_of({"const": "b"}), STOPS, TENANT)


async def test_the_program_ends_with_the_server() -> None:
    async with checked() as grammars:
        await grammars.start(grammar_of({"const": "a"}), STOPS, TENANT)
        pid = pid_of(grammars)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_one_tenant_does_not_hold_all_places() -> None:
    places = FairPlaces(2)
    async with places.hold("greedy", patience_s=1):
        with pytest.raises(Overloaded):
            async with places.hold("greedy", patience_s=0.01):
                pass
        async with places.hold("modest", patience_s=1):
            pass


async def test_one_place_serves_everyone_in_turn() -> None:
    places = FairPlaces(1)
    for tenant in ("a", "b", "a"):
        async with places.hold(tenant, patience_s=1):
            pass


@pytest.mark.parametrize(("count", "longest_s"), [(1, 1.0), (2, 0.0), (4, 0.0)])
async def test_a_tenant_waits_for_one_piece_of_another_ones_work_at_most(
    count: int, longest_s: float, autojump_clock: object
) -> None:
    places = FairPlaces(count)

    async def work() -> None:
        async with places.hold("greedy", patience_s=1000):
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for _ in range(40):
            nursery.start_soon(work)
        await trio.sleep(5.5)
        began = trio.current_time()
        async with places.hold("modest", patience_s=1000):
            assert trio.current_time() - began <= longest_s


async def test_many_tenants_get_places_in_turn(autojump_clock: object) -> None:
    places, ended = FairPlaces(2), list[str]()

    async def work(tenant: str) -> None:
        async with places.hold(tenant, patience_s=1000):
            await trio.sleep(1)
        ended.append(tenant)

    async with trio.open_nursery() as nursery:
        for tenant in "abcd":
            for _ in range(10):
                nursery.start_soon(work, tenant)
    for tenant in "abcd":
        assert 4 <= ended[:20].count(tenant) <= 6


@pytest.mark.slow
async def test_hostile_grammars_of_one_key_leave_room_for_another_key() -> None:
    async with checked(time_s=0.5) as grammars:

        async def send(number: int) -> None:
            with suppress(ClientError, Overloaded):
                await grammars.start(grammar_of({"type": "integer", "multipleOf": 1000003 + number}), STOPS, "key a")

        await grammars.start(grammar_of({"const": "warm"}), STOPS, "key b")
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(send, number)
            await trio.sleep(0.1)
            checks = grammars.checks_made
            await grammars.start(grammar_of({"const": "b"}), STOPS, "key b")
            assert grammars.checks_made - checks <= 2
            nursery.cancel_scope.cancel()


def test_hostile_schemas_repeat_from_their_seed_and_have_every_kind() -> None:
    schemas = hostile_schemas(2 * len(KINDS), seed=3)
    assert schemas == hostile_schemas(2 * len(KINDS), seed=3)
    assert [kind for kind, _ in schemas[: len(KINDS)]] == [kind.__name__.strip("_") for kind in KINDS]
