"""Models that are loaded and unloaded inside a test: real backends over `succ`, whose loads wait until the test opens a gate."""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from tests.kit.engine.local_backend import make_local_backend
from tests.kit.model.tiny_models import succ_model
from tlserve.generation import BackendInfo, GenerationRequest, ModelState, TokenEvent
from tlserve.kernels.interface import Model
from tlserve.programs.residency.loading import LoadedWeights, Plan
from tlserve.programs.residency.memory import ModelMemory
from tlserve.programs.residency.resident import ResidentModel

PATIENCE_S = 20.0
_pause = threading.Event()  # never set: waiting for it gives threads real time, also where trio's clock stands still
REQUEST = GenerationRequest(prompt=(97,), max_tokens=3, seed=0)


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks and threads run until `condition` holds; real time bounds the wait, whatever the clock of the run."""
    for _ in range(int(PATIENCE_S * 2000)):
        if condition():
            return
        await trio.to_thread.run_sync(_pause.wait, 0.0005)
    raise AssertionError("it did not happen")


class GatedSource:
    """Loads a model of `size` bytes; each load waits for `gate`, and raises `error` if there is one."""

    def __init__(self, size: int, make_model: Callable[[], Model] = succ_model) -> None:
        self.size = size
        self.gate = trio.Event()
        self.error: Exception | None = None
        self.begun = 0
        self._make_model = make_model
        self._loaded: list[weakref.ref[Model]] = []

    def load(self) -> LoadedWeights:
        """Return a new backend, as a thread that reads a file would."""
        self.begun += 1
        trio.from_thread.run(self.gate.wait)
        if self.error is not None:
            raise self.error
        model = self._make_model()
        self._loaded.append(weakref.ref(model))
        return LoadedWeights(memory_bytes=self.size, holder=model, make=lambda: make_local_backend(model))

    @property
    def alive(self) -> int:
        """Return how many of the loaded models are in memory still; the collector does not help."""
        return sum(model() is not None for model in self._loaded)


@attrs.frozen(eq=False)
class Leaving:
    """One model that can leave, and its source."""

    model: ResidentModel
    source: GatedSource

    @property
    def state(self) -> str:
        return self.model.status().state.value

    async def wait(self, state: ModelState) -> None:
        """Wait until the model is in `state`."""
        await until(lambda: self.model.status().state is state)

    async def answer(self) -> tuple[int, ...]:
        """Hold the model for one request and return its tokens."""
        async with self.model.held():
            return await self.tokens()

    async def tokens(self) -> tuple[int, ...]:
        """Return the tokens of a request, for which the model is held."""
        found: list[int] = []
        async with self.model.generate(REQUEST) as stream:
            async for batch in stream:
                found += [event.token for event in batch if isinstance(event, TokenEvent)]
        return tuple(found)


def make_leaving(memory: ModelMemory, name: str, size: int, *, expected: int | None = None, **plan: Any) -> Leaving:
    """Return a model that is not loaded yet and does not run; `plan` are fields of Plan."""
    source = GatedSource(size)
    info = BackendInfo(
        model_id=name,
        context_tokens=4096,
        vocabulary_size=256,
        embedding_size=0,
        system_fingerprint="",
        kernels="",
    )
    expected_bytes = size if expected is None else expected
    return Leaving(
        ResidentModel(Plan(info=info, load=source.load, expected_bytes=expected_bytes, **plan), memory), source
    )


@asynccontextmanager
async def leaving_models(
    budget: int, sizes: dict[str, int], *, gated: bool = False, **plan: Any
) -> AsyncIterator[dict[str, Leaving]]:
    """Run models of these sizes for the block; their loads wait for nothing unless they are `gated`."""
    memory = ModelMemory(budget)
    models = {name: make_leaving(memory, name, size, **plan) for name, size in sizes.items()}
    async with trio.open_nursery() as nursery:
        for one in models.values():
            if not gated:
                one.source.gate.set()
            await nursery.start(one.model.run)
        yield models
        for one in models.values():
            one.source.gate.set()
        nursery.cancel_scope.cancel()
