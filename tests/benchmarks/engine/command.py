"""`tlserve bench engine`: the engine without HTTP, and, if asked, what HTTP and each kind of sampling add to it.

Owns how the engine comes about: as a server with the same settings would make it. Refuses to measure.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

import attrs
import trio

from tests.benchmarks.engine.sampling_costs import SCHEMA, SamplingCost, kinds_of_sampling, measure_sampling
from tests.benchmarks.engine.steps import BareEngine, StepFigures, measure_engine
from tests.benchmarks.engine.through_http import ThroughHttp, measure_through_http
from tlserve.bench.report import engine_report
from tlserve.bench.target import parse_target
from tlserve.chat.dialect import FROM_NOTHING
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.grammars.answers import answer_grammar
from tlserve.chat.grammars.compiler import LlguidanceCompiler
from tlserve.chat.grammars.formats import schema_format
from tlserve.cli.bench.arguments import engine_plan
from tlserve.cli.bench.settings import own_settings
from tlserve.cli.bench.table import print_sampling, print_steps, print_through_http, progress
from tlserve.config.machine import available_memory_bytes
from tlserve.config.settings import Settings
from tlserve.generation import CompiledGrammar
from tlserve.model.load import LoadedModel
from tlserve.programs import server as app
from tlserve.programs.local_models import load, make_engine
from tlserve.text.tokenizer import build_tokenizer


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    settings = own_settings(arguments)
    loaded = load(settings.engine)
    found = trio.run(partial(_measure, arguments, settings, loaded))
    if arguments.json:
        plan, kernels = engine_plan(arguments), loaded.model.spec.kernels
        print(engine_report(plan, kernels, found.steps, found.sampling, found.through_http))
    else:
        print_steps(found.steps, arguments.prefill_tokens)
        print_sampling(found.sampling)
        print_through_http(found.through_http)
    return 0


@attrs.frozen
class Found:
    """All that was measured."""

    steps: Sequence[StepFigures]
    sampling: Sequence[SamplingCost]
    through_http: ThroughHttp | None


def _schema(loaded: LoadedModel, settings: Settings) -> CompiledGrammar | None:
    """Return what an answer may be held to; None for a model that has no end of an answer."""
    if not loaded.eos_ids:
        return None
    size, tokenizer = loaded.model.spec.vocabulary_size, build_tokenizer(loaded.metadata)
    compiler = LlguidanceCompiler(tokenizer, size, source_bytes=settings.engine.grammar_bytes)
    grammar = answer_grammar(schema_format(SCHEMA, "schema", "schema"), None, PLAIN, FROM_NOTHING, {})
    assert grammar is not None
    return compiler.compile(grammar, loaded.eos_ids)


async def _measure(arguments: argparse.Namespace, settings: Settings, loaded: LoadedModel) -> Found:
    plan, vocabulary_size = engine_plan(arguments), loaded.model.spec.vocabulary_size
    kinds = kinds_of_sampling(vocabulary_size, _schema(loaded, settings) if arguments.sampling else None)
    sampled = plan.repeats * len(plan.rows) * len(kinds) * arguments.sampling
    engine = make_engine(settings.engine, loaded, available_memory_bytes())
    with progress("measurements", plan.total + sampled + plan.repeats * arguments.through_http) as done:
        steps = measure_engine(engine, vocabulary_size, plan, done)
        bare = BareEngine(engine, vocabulary_size, plan.seed + 1)
        sampling = measure_sampling(bare, kinds, plan, done) if arguments.sampling else ()
        if not arguments.through_http:
            return Found(steps, sampling, None)
        async with trio.open_nursery() as nursery:
            running = await nursery.start(partial(app.serve, settings, loaded=loaded, handle_signals=False))
            model = running.assembled.backend.info().model_id
            target = parse_target(f"http://{running.api_addresses[0]}", name="tlserve", model=model)
            through_http = await measure_through_http(bare, target, plan, done)
            running.stop()
    return Found(steps, sampling, through_http)
