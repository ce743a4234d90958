"""A `LocalBackend` over a small model that runs inside a block."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.kit.model.tiny_models import succ_model
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.generation import BackendInfo, GrammarCompiler
from tlserve.kernels.interface import Model
from tlserve.worker.local_backend import BackendLimits, LocalBackend


def make_local_backend(
    model: Model | None = None,
    *,
    admission: int = 64,
    embeddings: int = 16,
    queue_deadline_s: float = 30.0,
    heartbeat_stale_s: float = 30.0,
    compiler: GrammarCompiler | None = None,
    **config: Any,
) -> LocalBackend:
    """Return a backend that does not run yet; `config` are fields of EngineConfig."""
    model = model or succ_model()
    engine = Engine(model, EngineConfig(**config))
    info = BackendInfo(
        model_id="succ",
        context_tokens=engine.context_tokens,
        vocabulary_size=model.spec.vocabulary_size,
        embedding_size=model.spec.hidden_size,
        system_fingerprint="fp_test",
        kernels=model.spec.kernels,
    )
    limits = BackendLimits(
        admission=admission,
        embeddings=embeddings,
        queue_deadline_s=queue_deadline_s,
        heartbeat_stale_s=heartbeat_stale_s,
    )
    return LocalBackend(engine, info, limits, compiler)


@asynccontextmanager
async def local_backend(model: Model | None = None, **settings: Any) -> AsyncIterator[LocalBackend]:
    """Run a backend for the block."""
    backend = make_local_backend(model, **settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        yield backend
        nursery.cancel_scope.cancel()
