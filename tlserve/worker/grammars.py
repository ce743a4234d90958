"""Grammars compiled beside the event loop and the engine, each once, and kept for the next request.

Owns the time that a grammar may take, how many are compiled at once, and which are kept. Refuses to know their language. Lives on
the event loop; the compiler runs in worker threads of its own limiter. A thread that takes too long is left behind, and its
place in the limiter with it until it ends: it holds up other new grammars, and nothing else.

The compiler goes as deep as a grammar does, and a stack that overflows in native code ends the process: so each compilation has
a thread with a stack that grows with its text. Measured: chains of thousands of rules or references took some 3 kB a link, and
a link is at least 14 bytes of text.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import attrs
import trio

from tlserve.errors import ClientError, Overloaded, Refusal
from tlserve.generation import CompiledGrammar, Grammar, GrammarCompiler, TokenConstraint

Key = tuple[str, frozenset[int]]
Outcome = CompiledGrammar | ClientError
_STACK_BYTES = 64 << 20
_STACK_PER_BYTE = 1024


@attrs.frozen(kw_only=True)
class GrammarLimits:
    """`time_s` for one grammar; at most `kept` stay compiled, the latest ones; `at_once` are compiled side by side."""

    time_s: float = 2.0
    kept: int = 64
    at_once: int = 2


@attrs.define(eq=False)
class _Compilation:
    """One grammar under way; `outcome` None once it is `over`: the task that began it was cancelled."""

    over: trio.Event = attrs.field(factory=trio.Event)
    outcome: Outcome | None = None
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

    async def _outcome(self, compiler: GrammarCompiler, key: Key, grammar: Grammar, own: _Compilation) -> Outcome:
        def compile_it() -> Outcome:
            own.begun = True
            return _deep_down(lambda: _compiled(compiler, grammar, key[1]), len(grammar.source))

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


def _compiled(compiler: GrammarCompiler, grammar: Grammar, stop_ids: frozenset[int]) -> Outcome:
    try:
        return compiler.compile(grammar, stop_ids)
    except ClientError as error:
        return error


def _deep_down(work: Callable[[], Outcome], text_size: int) -> Outcome:
    """Return what `work` returns in a thread with a deep stack; raises what it raises. Memory is taken as it is used."""
    done: list[Outcome | BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # it goes to the tasks that wait
            done.append(error)

    usual = threading.stack_size(_STACK_BYTES + _STACK_PER_BYTE * text_size)
    try:
        thread = threading.Thread(target=run, name="tlserve-grammar", daemon=True)
        thread.start()
    finally:
        threading.stack_size(usual)
    thread.join()
    if isinstance(done[0], BaseException) and not isinstance(done[0], ClientError):
        raise done[0]
    return done[0]


def _raise_again(compilation: _Compilation) -> None:
    """Raise the error that is the outcome, as a new object for each task that waited for it."""
    error = compilation.outcome
    if isinstance(error, ClientError):
        raise ClientError(error.message, param=error.param, code=error.code)
