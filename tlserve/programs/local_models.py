"""Models with engines in this process: the settings of one become its engine and its backend.

Owns the loading of a model, and the size of its memory. Knows nothing of other models, and of the server around them.
"""

from __future__ import annotations

import hashlib
import logging
from importlib.metadata import version

from tlserve import __version__
from tlserve.chat.grammars.compiler import LlguidanceCompiler
from tlserve.config.machine import SHARE_OF_MEMORY
from tlserve.config.model_id import served_model_id
from tlserve.config.settings import EngineSettings
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.errors import SettingsError
from tlserve.generation import BackendInfo
from tlserve.kernels.choose import choose_kernels
from tlserve.kernels.interface import ModelSpec
from tlserve.model.load import LoadedModel, load_model
from tlserve.programs.grammars.start import check_program
from tlserve.programs.hosted_model import find_model_path
from tlserve.text.tokenizer import Tokenizer
from tlserve.worker.grammars import GrammarLimits
from tlserve.worker.local_backend import BackendLimits, LocalBackend

log = logging.getLogger("tlserve")

MIB = 1 << 20


def load(settings: EngineSettings) -> LoadedModel:
    """Load the model that the settings name; slow. Features of its files that are not supported go to the log."""
    loaded = load_model(
        find_model_path(settings.model_dir),
        context_tokens=settings.context_tokens,
        threads=settings.threads,
        kernels=choose_kernels(
            settings.kernels,
            activations=settings.activations,
            kv_precision=settings.kv_precision,
            weights=settings.weights,
        ),
    )
    for note in loaded.notes:
        log.warning("%s: %s", loaded.name, note)
    return loaded


def make_engine(settings: EngineSettings, loaded: LoadedModel, memory_bytes: int) -> Engine:
    """Make the engine of a model; its keys and values get a share of `memory_bytes`, unless the settings say how much."""
    return Engine(loaded.model, _engine_config(settings, loaded, memory_bytes))


def make_compiler(settings: EngineSettings, loaded: LoadedModel, tokenizer: Tokenizer) -> LlguidanceCompiler:
    """Return the compiler of a model's grammars; slow for a large vocabulary."""
    return LlguidanceCompiler(tokenizer, loaded.model.spec.vocabulary_size, source_bytes=settings.grammar_bytes)


def make_backend(
    settings: EngineSettings, loaded: LoadedModel, engine: Engine, compiler: LlguidanceCompiler
) -> LocalBackend:
    """Return the backend of a model. Call on the event loop, which its mailbox belongs to."""
    limits = _limits(settings, loaded)
    return LocalBackend(engine, _info(settings, loaded, engine, limits), limits, compiler, check_program(compiler))


def memory_of(loaded: LoadedModel, engine: Engine) -> int:
    """Return what a model takes: its weights, and its keys and values when full."""
    return loaded.weights_bytes + engine.config.kv_tokens * loaded.model.spec.kv_bytes_per_token


def _engine_config(settings: EngineSettings, loaded: LoadedModel, memory_bytes: int) -> EngineConfig:
    return EngineConfig(
        max_num_seqs=settings.max_num_seqs,
        # the backend counts admissions, where a refusal is immediate; the engine's limit is never reached before
        max_waiting=max(settings.queue_capacity, 1 << 20),
        prefill_chunk=settings.prefill_chunk,
        block_size=settings.block_size,
        kv_blocks=plan_kv_blocks(settings, loaded.model.spec, memory_bytes),
        prefix_cache=settings.prefix_cache,
        speculative=settings.speculative,
        speculative_tokens=settings.speculative_tokens,
        context_tokens=settings.context_tokens,
        sampler="numpy" if settings.kernels == "reference" else "auto",
        sampler_threads=settings.threads,
    )


def _limits(settings: EngineSettings, loaded: LoadedModel) -> BackendLimits:
    return BackendLimits(
        admission=settings.max_num_seqs + settings.queue_capacity,
        # an encoder has no chats that embeddings could delay
        embeddings=settings.max_num_seqs if loaded.model.spec.bidirectional else max(1, settings.max_num_seqs // 2),
        queue_deadline_s=settings.queue_deadline_ms / 1000,
        heartbeat_stale_s=settings.heartbeat_stale_ms / 1000,
        grammars=_grammar_limits(settings),
    )


def _grammar_limits(settings: EngineSettings) -> GrammarLimits:
    return GrammarLimits(
        time_s=settings.grammar_timeout_ms / 1000,
        memory_bytes=settings.grammar_memory_bytes,
        kept=settings.grammar_cache,
    )


def _info(settings: EngineSettings, loaded: LoadedModel, engine: Engine, limits: BackendLimits) -> BackendInfo:
    spec = loaded.model.spec
    return BackendInfo(
        model_id=served_model_id(settings.model_dir, settings.model_id),
        context_tokens=engine.context_tokens,
        vocabulary_size=spec.vocabulary_size,
        embedding_size=spec.embedding_size,
        system_fingerprint=_fingerprint(spec.numerics),
        kernels=spec.kernels,
        admission_limit=limits.admission,
    )


def _fingerprint(numerics: str) -> str:
    """Return the hash of all that may change an answer: this version's code, the model's numerics, and the grammar library."""
    everything = f"{__version__}/{numerics}/llguidance {version('llguidance')}"
    return "fp_" + hashlib.blake2b(everything.encode(), digest_size=8).hexdigest()


# --- the description of a model at the start


def start_lines(settings: EngineSettings, loaded: LoadedModel, engine: Engine, info: BackendInfo) -> tuple[str, ...]:
    """Return the lines that describe a model to a person at the start."""
    return (
        f"  context    {info.context_tokens} tokens; {_kept(settings, loaded, engine)}",
        f"  arithmetic {info.kernels}; answers repeat under {info.system_fingerprint}",
        f"  requests   {settings.max_num_seqs} run at once, {settings.queue_capacity} more may wait",
    )


def _kept(settings: EngineSettings, loaded: LoadedModel, engine: Engine) -> str:
    """Describe the memory kept between steps; for an encoder, which keeps none, its vectors."""
    if not loaded.generates:
        size = loaded.model.spec.embedding_size
        return f"scores pairs of texts, {size} numbers each" if loaded.scores else f"makes vectors of {size} numbers"
    tokens = engine.config.kv_tokens
    size_mib = tokens * loaded.model.spec.kv_bytes_per_token // MIB
    return f"keys and values of {tokens} tokens ({size_mib} MiB when full); prefix cache {settings.prefix_cache}"


def start_facts(settings: EngineSettings, engine: Engine, info: BackendInfo) -> dict[str, object]:
    """Return the same facts for a program."""
    return {
        "context_tokens": info.context_tokens,
        "kv_tokens": engine.config.kv_tokens,
        "prefix_cache": settings.prefix_cache,
        "kernels": info.kernels,
        "system_fingerprint": info.system_fingerprint,
        "max_num_seqs": settings.max_num_seqs,
        "queue_capacity": settings.queue_capacity,
    }


# --- memory


def plan_kv_blocks(settings: EngineSettings, spec: ModelSpec, available_bytes: int) -> int:
    """Return the number of KV blocks; raises SettingsError if `kv_memory_bytes` does not hold a single one."""
    context_tokens = min(settings.context_tokens or spec.context_tokens, spec.context_tokens)
    blocks_per_context = -(-context_tokens // settings.block_size)
    most = blocks_per_context * settings.max_num_seqs
    bytes_per_block = spec.kv_bytes_per_token * settings.block_size
    if bytes_per_block == 0:  # a model without attention keeps nothing, and the pool only counts
        return most
    if settings.kv_memory_bytes == 0:
        return max(1, min(most, available_bytes // SHARE_OF_MEMORY // bytes_per_block))
    if settings.kv_memory_bytes < bytes_per_block:
        raise SettingsError(
            (
                f"engine.kv_memory_bytes = {settings.kv_memory_bytes} is less than one block of {settings.block_size} tokens: "
                f"a block takes {bytes_per_block} bytes with this model; set more, or 0 to let the server decide",
            )
        )
    return min(most, settings.kv_memory_bytes // bytes_per_block)
