"""The table of performance in one run: tlserve and every format of the peers in turn, round after round.

Owns the order of the measurements and the life of the servers: all of them run for the whole time, and one at a time is measured.
Does not know what the values mean.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

import attrs
import msgspec

from tests.benchmarks.processes import free_port, output_of, running
from tests.benchmarks.table.load_case import Generate, LoadCase
from tests.benchmarks.table.peers import InProcessPeer, Peers, PrefillPeer, ServerPeer
from tests.benchmarks.table.rows import (
    CASES,
    EACH,
    FIRST,
    IN_PROCESS,
    IN_PROCESS_CASES,
    OURS,
    OUT,
    PARTS,
    PREFILL,
    PREFILL_TOKENS,
    STEP,
)
from tlserve.bench.discover import with_model
from tlserve.bench.target import TargetServer, parse_target
from tlserve.errors import OperatorError

BARE_STEP = "bare step"
WARM_UP = LoadCase(name="warm-up", streams=2, rounds=2)
_SEEDS_APART = 1_000_003

SomePeer = TypeVar("SomePeer", ServerPeer, InProcessPeer, PrefillPeer)

Recorded = dict[str, dict[str, list[float]]]


@attrs.frozen(kw_only=True)
class TablePlan:
    """What is measured: `parts` of the table, `rounds` times. `answers` replaces the answers per client of each load."""

    rounds: int = 3
    parts: Sequence[str] = PARTS
    output_tokens: int = 64
    answers: int | None = None
    prefill_tokens: Sequence[int] = PREFILL_TOKENS
    steps: int = 64
    seed: int = 0

    @property
    def cases(self) -> list[LoadCase]:
        """Return the loads that servers get."""
        return [self.sized(case) for case in CASES if case.name in self.parts]

    def sized(self, case: LoadCase) -> LoadCase:
        """Return `case` with the plan's sizes."""
        return attrs.evolve(case, output_tokens=self.output_tokens, rounds=self.answers or case.rounds)

    def seed_of(self, number: int) -> int:
        """Return the seed of a round's first load; the others count up from it."""
        return self.seed * _SEEDS_APART + number * (len(CASES) + 1)

    def total(self, peers: Peers) -> int:
        """Return the number of measurements."""
        servers = 1 + sum(len(server.formats) for server in peers.server)
        in_process = len(IN_PROCESS_CASES) * (1 + sum(len(peer.formats) for peer in peers.in_process))
        prefill = len(self.prefill_tokens) * sum(len(peer.formats) for peer in peers.prefill)
        others = in_process * bool(peers.in_process and IN_PROCESS in self.parts) + prefill * (PREFILL in self.parts)
        return self.rounds * (len(self.cases) * servers + others + len(self.engine_tokens))

    @property
    def engine_tokens(self) -> Sequence[int]:
        """Return the prompts for which the bare engine is run."""
        if PREFILL in self.parts:
            return self.prefill_tokens
        return self.prefill_tokens[:1] if STEP in self.parts else ()


async def measure_table(plan: TablePlan, peers: Peers, generate: Generate, done: Callable[[], None]) -> Recorded:
    """Return all values, in the order of the rounds; `done` is called after each measurement.

    Raises OperatorError or ServerFault if something cannot be measured.
    """
    async with _servers(peers) as targets:
        run = _TableRun(plan, peers, generate, done, targets)
        for target in targets.values():
            await generate(target, plan.sized(WARM_UP), plan.seed_of(plan.rounds))
        for number in range(plan.rounds):
            await run.round(plan.seed_of(number))
    return run.recorded


@asynccontextmanager
async def _servers(peers: Peers) -> AsyncIterator[Mapping[str, TargetServer]]:
    """Run tlserve and every format of the peers for the block."""
    async with AsyncExitStack() as stack:
        port = free_port()
        await stack.enter_async_context(running(peers.ours.serve(port), f"http://127.0.0.1:{port}/v1/models"))
        targets = {OURS: await with_model(_target(port, OURS))}
        for server, format_ in _formats(peers.server):
            port, name = free_port(), server.label(format_)
            command = server.words(format_, port=port)
            await stack.enter_async_context(running(command, server.ready.format(port=port)))
            targets[name] = await with_model(_target(port, name, server.model))
        yield targets


def _target(port: int, name: str, model: str = "") -> TargetServer:
    return parse_target(f"http://127.0.0.1:{port}", name=name, model=model)


@attrs.frozen
class _TableRun:
    plan: TablePlan
    peers: Peers
    generate: Generate
    done: Callable[[], None]
    targets: Mapping[str, TargetServer]
    recorded: Recorded = attrs.field(factory=dict)

    async def round(self, seed: int) -> None:
        for number, case in enumerate(self.plan.cases):
            await self._load(case, seed + number)
        if self.peers.in_process and IN_PROCESS in self.plan.parts:
            for number, name in enumerate(IN_PROCESS_CASES):
                await self._in_process(name, seed + len(CASES) + number)
        for number, tokens in enumerate(self.plan.engine_tokens):
            await self._engine(tokens, is_first=number == 0)
            if PREFILL in self.plan.parts:
                await self._prefill(tokens)

    async def _load(self, case: LoadCase, seed: int) -> None:
        for name, target in self.targets.items():
            figures = await self.generate(target, case, seed)
            self._record(case.name + OUT, name, figures.output_tokens_per_s)
            self._record(case.name + FIRST, name, figures.first_token_ms)
            self._record(case.name + EACH, name, figures.per_token_ms)
            self.done()

    async def _in_process(self, name: str, seed: int) -> None:
        """Compare with the same load through tlserve, measured again so that the runs are neighbours."""
        case = self.plan.sized(next(case for case in CASES if case.name == name))
        figures = await self.generate(self.targets[OURS], case, seed)
        self._record(f"{IN_PROCESS}.{name}", OURS, figures.output_tokens_per_s)
        self.done()
        for peer, format_ in _formats(self.peers.in_process):
            printed = await output_of(peer.words(format_, streams=case.streams))
            self._record(f"{IN_PROCESS}.{name}", peer.label(format_), tokens_per_s(peer, printed))
            self.done()

    async def _engine(self, tokens: int, *, is_first: bool) -> None:
        report = msgspec.json.decode(await output_of(self.peers.ours.engine(tokens, self.plan.steps)))
        (prefill,) = (step for step in report["steps"] if step["work"] == "prefill")
        if PREFILL in self.plan.parts:
            self._record(f"{PREFILL}.{tokens}", OURS, prefill["tokens_per_s"]["median"])
        if STEP in self.plan.parts and is_first:
            self._record(STEP, OURS, report["through_http"]["http_ms"])
            self._record(STEP, BARE_STEP, report["through_http"]["engine_ms"])
        self.done()

    async def _prefill(self, tokens: int) -> None:
        for peer, format_ in _formats(self.peers.prefill):
            printed = await output_of(peer.words(format_, tokens=tokens))
            self._record(f"{PREFILL}.{tokens}", peer.label(format_), prefill_rate(peer, printed, tokens))
            self.done()

    def _record(self, what: str, who: str, value: float) -> None:
        self.recorded.setdefault(what, {}).setdefault(who, []).append(value)


def _formats(peers: Sequence[SomePeer]) -> Iterator[tuple[SomePeer, str]]:
    return ((peer, format_) for peer in peers for format_ in peer.formats)


def tokens_per_s(peer: InProcessPeer, printed: str) -> float:
    """Return the number that the peer's pattern finds; raises OperatorError."""
    found = re.search(peer.pattern, printed.strip())
    try:
        return float(found[1] if found else "")
    except (ValueError, IndexError):
        raise OperatorError(f"{peer.name} printed no tokens/s ({peer.pattern!r}) but {printed[-300:]!r}") from None


def prefill_rate(peer: PrefillPeer, printed: str, tokens: int) -> float:
    """Return the best rate of a prompt of `tokens` tokens in llama-bench's JSON; raises OperatorError."""
    try:
        entries = msgspec.json.decode(printed)
        return max(float(e["avg_ts"]) for e in entries if e["n_prompt"] == tokens and not e["n_gen"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        raise OperatorError(f"{peer.name} printed no rate of {tokens} tokens as JSON but {printed[-300:]!r}") from None
