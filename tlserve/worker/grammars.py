"""Grammars compiled beside the event loop and the engine, each once, and kept for the next request.

Owns what a grammar may cost, how many are compiled at once and for whom, and which are kept. Knows nothing of their language.
Lives on the event loop.

A client's grammar is first compiled in another process (`tlserve.worker.grammar_checks`), where it can be ended at any moment and
its costs are measured. Only what passed there is compiled here, in a worker thread, at the same cost.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

import attrs
import trio

from tlserve.admission.fair_places import FairPlaces
from tlserve.errors import ClientError, Overloaded, Refusal
from tlserve.generation import CompiledGrammar, Grammar, GrammarCompiler, TokenConstraint
from tlserve.worker.check_messages import CheckReply, CheckRequest
from tlserve.worker.deep_stack import run_with_deep_stack
from tlserve.worker.grammar_checks import CheckProgram, GrammarChecks

log = logging.getLogger("tlserve.worker")

Key = tuple[str, str, frozenset[int]]
"""The owner of the cache, the source, and the ids that end the answer."""
_FREE_BYTES = 7 << 20
_MEMORY_PER_BYTE = 400
"""What a compiled grammar may take, in bytes for each byte of its source, beyond `_FREE_BYTES`. Measured: 260 for 5,000 required
properties, 370 for as many optional ones; hostile ones take ten thousand."""

_WALL_FACTOR = 4
"""Wall time of a check for each second of CPU time: the engine's threads come first."""

_WALL_FREE_S = 5.0
"""Wall time of a check beyond that: a machine can be busy for seconds."""


@attrs.frozen(kw_only=True)
class GrammarLimits:
    """What compiling may cost.

    `time_s` is the CPU time for one grammar, `mask_s` that of its slowest mask; `memory_bytes` is what all that are kept may take
    together, and one may take a quarter of it. At most `kept` stay compiled, the latest ones. `at_once` are compiled at the same
    time, and all but one of these places at most are one tenant's.
    """

    time_s: float = 2.0
    mask_s: float = 0.05
    memory_bytes: int = 256 << 20
    kept: int = 64
    at_once: int = 2

    def check_of(self, grammar: Grammar, stop_ids: frozenset[int]) -> CheckRequest:
        """Return the check of `grammar`: memory follows the bytes that were sent."""
        allowed = _FREE_BYTES + _MEMORY_PER_BYTE * len(grammar.source.encode())
        return CheckRequest(
            number=0,
            source=grammar.source,
            stop_ids=sorted(stop_ids),
            cpu_s=self.time_s,
            wall_s=_WALL_FACTOR * self.time_s + _WALL_FREE_S,
            memory_bytes=min(allowed, self.memory_bytes // 4),
        )


@attrs.frozen
class _Kept:
    """A compiled grammar, and the memory that it takes, in bytes."""

    compiled: CompiledGrammar
    memory_bytes: int


Outcome = _Kept | ClientError


@attrs.define(eq=False)
class _Compilation:
    """One grammar under way. `outcome` is None once it is `over` if the request that began it was cancelled."""

    over: trio.Event = attrs.field(factory=trio.Event)
    outcome: Outcome | None = None


class Grammars:
    """The grammars of one backend. Without a compiler each is refused; without a `program` they are compiled unchecked."""

    def __init__(
        self, compiler: GrammarCompiler | None, limits: GrammarLimits, program: CheckProgram | None = None
    ) -> None:
        self._compiler = compiler
        self._limits = limits
        self.checks_made = 0
        self._checks = None if program is None else GrammarChecks(program)
        self._places = FairPlaces(limits.at_once, "too many grammars are being compiled; retry in 1 s")
        self._threads = trio.CapacityLimiter(limits.at_once)
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self._refused: OrderedDict[Key, ClientError] = OrderedDict()
        self._under_way: dict[tuple[str, Key], _Compilation] = {}

    @property
    def checker_pid(self) -> int | None:
        """The process id of the program that checks grammars, while it runs."""
        return None if self._checks is None else self._checks.pid

    async def run(self) -> None:
        """Keep the program that checks grammars; returns at once where there is none."""
        if self._checks is not None:
            await self._checks.run()

    async def start(
        self, grammar: Grammar, stop_ids: frozenset[int], tenant: str, cache_owner: str = ""
    ) -> TokenConstraint:
        """Return a fresh constraint of `grammar`, for a request of `tenant`.

        Only requests with the same `cache_owner` use the same compiled grammar: its time does not show who sent it before.
        Raises ClientError for a grammar that is refused, and Overloaded if its turn did not come.
        """
        if self._compiler is None:
            raise Refusal("this server has nothing that compiles grammars", param="structured_outputs")
        key = (cache_owner, grammar.source, stop_ids)
        while key not in self._kept:
            _raise_again(self._refused.get(key))
            under_way = self._under_way.get((tenant, key))
            if under_way is None:
                await self._compile(self._compiler, key, grammar, tenant)
                continue
            await under_way.over.wait()
            _raise_again(under_way.outcome)
        self._kept.move_to_end(key)
        return self._kept[key].compiled.start()

    async def _compile(self, compiler: GrammarCompiler, key: Key, grammar: Grammar, tenant: str) -> None:
        """Compile a grammar once the tenant has a place, unless another tenant's request has done so by then.

        Only requests of one tenant wait for each other: behind a grammar of another one can be a long queue.
        """
        own = self._under_way[tenant, key] = _Compilation()
        try:
            async with self._places.hold(tenant, patience_s=_WALL_FACTOR * self._limits.time_s):
                own.outcome = self._known(key) or await self._outcome(compiler, grammar, key[2])
                self._keep(key, own.outcome)
        finally:
            del self._under_way[tenant, key]
            own.over.set()
        _raise_again(own.outcome)

    def _known(self, key: Key) -> Outcome | None:
        return self._kept.get(key) or self._refused.get(key)

    async def _outcome(self, compiler: GrammarCompiler, grammar: Grammar, stop_ids: frozenset[int]) -> Outcome:
        """Return `grammar` compiled, or why it is refused; raises Overloaded if the machine is too busy for its check."""
        if self._checks is None:
            return await self._compiled_here(compiler, grammar, stop_ids, self._limits.time_s, memory_bytes=0)
        request = self._limits.check_of(grammar, stop_ids)
        self.checks_made += 1
        reply = await self._checks.check(request)
        refusal = self._refusal(request, reply, compiler.field(grammar))
        if refusal is not None:
            return refusal
        wall_s = _WALL_FACTOR * self._limits.time_s
        return await self._compiled_here(compiler, grammar, stop_ids, wall_s, reply.memory_bytes)

    def _refusal(self, request: CheckRequest, reply: CheckReply, field: str) -> ClientError | None:
        """Return why a grammar that was checked is refused, or None; raises Overloaded where the check did not end."""
        limits = self._limits
        if reply.verdict == "died":
            raise Overloaded(f"the server is too busy to compile {field}; retry in 1 s")
        if reply.verdict == "refused":
            return ClientError(reply.message, param=reply.param)
        reason = ""
        if reply.verdict == "time":
            reason = f"takes more than {limits.time_s:g} s to compile"
        elif reply.verdict == "memory":
            reason = f"takes more than {request.memory_bytes >> 20} MB of memory to compile"
        elif reply.mask_s > limits.mask_s:
            taken, most = 1000 * reply.mask_s, 1000 * limits.mask_s
            reason = f"takes {taken:.0f} ms to choose a token, and at most {most:.0f} ms are allowed"
        if not reason:
            return None
        log.warning("a grammar of %d bytes is refused: it %s", len(request.source), reason)
        return ClientError(f"{field} {reason}; send a simpler one", param=field)

    async def _compiled_here(
        self, compiler: GrammarCompiler, grammar: Grammar, stop_ids: frozenset[int], wall_s: float, memory_bytes: int
    ) -> Outcome:
        begun = False

        def compile_it() -> Outcome:
            nonlocal begun
            begun, text_bytes = True, len(grammar.source)
            try:
                return _Kept(run_with_deep_stack(lambda: compiler.compile(grammar, stop_ids), text_bytes), memory_bytes)
            except ClientError as error:
                return error

        with trio.move_on_after(wall_s):
            return await trio.to_thread.run_sync(compile_it, limiter=self._threads, abandon_on_cancel=True)
        field = compiler.field(grammar)
        if not begun:  # every thread still compiles a grammar whose request has given up
            raise Overloaded(f"the server is too busy to compile {field}; retry in 1 s")
        return ClientError(f"{field} takes longer than {wall_s:g} s to compile; send a simpler one", param=field)

    def _keep(self, key: Key, outcome: Outcome | None) -> None:
        if isinstance(outcome, ClientError):
            self._refused[key] = outcome
            while len(self._refused) > self._limits.kept:
                self._refused.popitem(last=False)
        elif outcome is not None:
            self._kept[key] = outcome
            while len(self._kept) > 1 and self._is_over_limits():
                self._kept.popitem(last=False)

    def _is_over_limits(self) -> bool:
        memory_bytes = sum(kept.memory_bytes for kept in self._kept.values())
        return len(self._kept) > self._limits.kept or memory_bytes > self._limits.memory_bytes


def _raise_again(outcome: Outcome | None) -> None:
    """Raise the error that is the outcome: a new one, for each request that waited for it."""
    if isinstance(outcome, ClientError):
        raise ClientError(outcome.message, param=outcome.param, code=outcome.code)
