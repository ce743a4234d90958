"""Grammars compiled beside the event loop and the engine, each once, and kept for the next request.

Owns the time that a grammar may take, how many are compiled at once, and which are kept. Refuses to know their language. Lives on
the event loop; the compiler runs in worker threads of its own limiter. A thread that takes too long is left behind, and its
place in the limiter with it until it ends: it holds up other new grammars, and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict

import attrs
import trio

from tlserve.errors import ClientError, Overloaded, Refusal
from tlserve.generation import CompiledGrammar, Grammar, GrammarCompiler, TokenConstraint

Key = tuple[str, frozenset[int]]


@attrs.frozen(kw_only=True)
class GrammarLimits:
    """`time_s` for one grammar; at most `kept` stay compiled, the latest ones; `at_once` are compiled side by side."""

    time_s: float = 2.0
    kept: int = 64
    at_once: int = 2


@attrs.define(eq=False)
class _Compilation:
    """One grammar under way; `outcome` None once it is `over`: whoever began it was cancelled."""

    over: trio.Event = attrs.field(factory=trio.Event)
    outcome: CompiledGrammar | ClientError | None = None
    begun: bool = False


class Grammars:
    """The grammars of one backend. Without a compiler each is refused."""

    def __init__(self, compiler: GrammarCompiler | None, limits: GrammarLimits) -> None:
        self._compiler = compiler
        self._limits = limits
        self._places = trio.CapacityLimiter(limits.at_once)
        self._kept: OrderedDict[Key, CompiledGrammar] = OrderedDict()
        self._under_way: dict[Key, _Compilation] = {}

    async def start(self, grammar: Grammar, stop_ids: frozenset[int]) -> TokenConstraint:
        """Return a fresh constraint; raises ClientError for a grammar that cannot be had, Overloaded if its turn did not come."""
        if self._compiler is None:
            raise Refusal("this server has nothing that compiles grammars", param="structured_outputs")
        key = (grammar.source, stop_ids)
        while key not in self._kept:
            if key not in self._under_way:
                await self._compile(self._compiler, key, grammar)
                continue
            under_way = self._under_way[key]
            await under_way.over.wait()
            _raise_again(under_way)
        self._kept.move_to_end(key)
        return self._kept[key].start()

    async def _compile(self, compiler: GrammarCompiler, key: Key, grammar: Grammar) -> None:
        own = self._under_way[key] = _Compilation()
        try:
            own.outcome = await self._outcome(compiler, key, grammar, own)
        finally:
            del self._under_way[key]
            own.over.set()
        _raise_again(own)
        assert not isinstance(own.outcome, ClientError)
        self._keep(key, own.outcome)

    async def _outcome(
        self, compiler: GrammarCompiler, key: Key, grammar: Grammar, own: _Compilation
    ) -> CompiledGrammar | ClientError:
        def compile_it() -> CompiledGrammar | ClientError:
            own.begun = True
            try:
                return compiler.compile(grammar, key[1])
            except ClientError as error:
                return error

        with trio.move_on_after(self._limits.time_s):
            return await trio.to_thread.run_sync(compile_it, limiter=self._places, abandon_on_cancel=True)
        if not own.begun:
            raise Overloaded("too many grammars are being compiled; retry in 1 s")
        field = compiler.field(grammar)
        return ClientError(f"{field} takes longer than {self._limits.time_s:g} s to compile; ask for less", param=field)

    def _keep(self, key: Key, compiled: CompiledGrammar | None) -> None:
        assert compiled is not None
        self._kept[key] = compiled
        while len(self._kept) > self._limits.kept:
            self._kept.popitem(last=False)


def _raise_again(compilation: _Compilation) -> None:
    """Raise the error that is the outcome, anew for each who waited for it."""
    error = compilation.outcome
    if isinstance(error, ClientError):
        raise ClientError(error.message, param=error.param, code=error.code)
