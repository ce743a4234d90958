"""`python -m tests.benchmarks engine`: the engine without HTTP; on request, what HTTP and each kind of sampling add to a step.

Owns the options, the tables and the JSON document. The engine is made as a server with the same settings would make it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

import attrs
import trio

from tests.benchmarks.engine.activation_costs import ActivationCost, measure_activations
from tests.benchmarks.engine.sampling_costs import SCHEMA, SamplingCost, kinds_of_sampling, measure_sampling
from tests.benchmarks.engine.steps import BareEngine, EnginePlan, StepFigures, measure_engine
from tests.benchmarks.engine.through_http import ThroughHttp, measure_through_http
from tlserve.bench.report import document
from tlserve.bench.target import parse_target
from tlserve.chat.dialect import FROM_NOTHING
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.grammars.answers import answer_grammar
from tlserve.chat.grammars.compiler import LlguidanceCompiler
from tlserve.chat.grammars.formats import schema_format
from tlserve.cli.bench.arguments import list_of, number_from
from tlserve.cli.bench.command import own_settings
from tlserve.cli.bench.table import print_table, progress, written_ratio
from tlserve.cli.settings_arguments import add_settings_arguments
from tlserve.config.machine import available_memory_bytes
from tlserve.config.settings import Settings
from tlserve.generation import CompiledGrammar
from tlserve.model.load import LoadedModel
from tlserve.programs import server as app
from tlserve.programs.local_models import load, make_engine
from tlserve.text.tokenizer import build_tokenizer


@attrs.frozen
class EngineFigures:
    """Everything that was measured."""

    steps: Sequence[StepFigures]
    sampling: Sequence[SamplingCost]
    activations: Sequence[ActivationCost]
    through_http: ThroughHttp | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    count = number_from(int, 1)
    add_settings_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument("--repeat", type=count, default=3, help="number of times everything is measured")
    parser.add_argument("--seed", type=int, default=0, help="seed of the prompts")
    parser.add_argument("--prefill-tokens", type=count, default=512, help="tokens of the prompt that is timed")
    parser.add_argument("--rows", type=list_of(count), default=(1, 8, 32), help="sequences in a step, such as 1,8,32")
    parser.add_argument("--context-tokens", type=count, default=100, help="tokens before those that are decoded")
    parser.add_argument("--steps", type=number_from(int, 2), default=64, help="steps that are timed together")
    parser.add_argument(
        "--through-http", action="store_true", help="compare a token through the server with a step, at one stream"
    )
    parser.add_argument(
        "--sampling", action="store_true", help="compare each kind of sampling with a step that takes the best token"
    )
    parser.add_argument(
        "--activations",
        type=list_of(str),
        default=(),
        metavar="A,B",
        help="compare engines with these types of activations, in turn, such as int8,int12",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    settings, plan = own_settings(arguments), engine_plan(arguments)
    loaded = load(settings.engine)
    figures = trio.run(partial(_measure, arguments, settings, loaded))
    if arguments.json:
        print(report(plan, loaded.model.spec.kernels, figures))
    else:
        print_steps(figures.steps, plan.prefill_tokens)
        print_sampling(figures.sampling)
        print_activations(figures.activations)
        print_through_http(figures.through_http)
    return 0


def engine_plan(arguments: argparse.Namespace) -> EnginePlan:
    """Return what is measured."""
    return EnginePlan(
        prefill_tokens=arguments.prefill_tokens,
        rows=arguments.rows,
        prompt_tokens=arguments.context_tokens,
        steps=arguments.steps,
        repeats=arguments.repeat,
        seed=arguments.seed,
    )


async def _measure(arguments: argparse.Namespace, settings: Settings, loaded: LoadedModel) -> EngineFigures:
    plan, vocabulary_size = engine_plan(arguments), loaded.model.spec.vocabulary_size
    kinds = kinds_of_sampling(vocabulary_size, _schema(loaded, settings) if arguments.sampling else None)
    sampled = plan.repeats * len(plan.rows) * len(kinds) * arguments.sampling
    engine = make_engine(settings.engine, loaded, available_memory_bytes())
    compared = plan.repeats * (1 + len(plan.rows)) * len(arguments.activations)
    with progress("measurements", plan.total + sampled + compared + plan.repeats * arguments.through_http) as done:
        steps = measure_engine(engine, vocabulary_size, plan, done)
        bare = BareEngine(engine, vocabulary_size, plan.seed + 1)
        sampling = measure_sampling(bare, kinds, plan, done) if arguments.sampling else ()
        activations = measure_activations(_engines(settings, arguments.activations, plan), plan, done)
        if not arguments.through_http:
            return EngineFigures(steps, sampling, activations, None)
        async with trio.open_nursery() as nursery:
            running = await nursery.start(partial(app.serve, settings, loaded=loaded, handle_signals=False))
            model = running.assembled.backend.info().model_id
            target = parse_target(f"http://{running.api_addresses[0]}", name="tlserve", model=model)
            through_http = await measure_through_http(bare, target, plan, done)
            running.stop()
    return EngineFigures(steps, sampling, activations, through_http)


def _engines(settings: Settings, names: Sequence[str], plan: EnginePlan) -> dict[str, BareEngine]:
    """Return an engine for each type of activations."""
    engines = {}
    for name in names:
        loaded = load(attrs.evolve(settings.engine, activations=name))
        engine = make_engine(settings.engine, loaded, available_memory_bytes() // len(names))
        engines[name] = BareEngine(engine, loaded.model.spec.vocabulary_size, plan.seed)
    return engines


def _schema(loaded: LoadedModel, settings: Settings) -> CompiledGrammar | None:
    """Return the schema that answers are held to; None for a model that has no end of an answer."""
    if not loaded.eos_ids:
        return None
    size, tokenizer = loaded.model.spec.vocabulary_size, build_tokenizer(loaded.metadata)
    compiler = LlguidanceCompiler(tokenizer, size, source_bytes=settings.engine.grammar_bytes)
    grammar = answer_grammar(schema_format(SCHEMA, "schema", "schema"), None, PLAIN, FROM_NOTHING, {})
    assert grammar is not None
    return compiler.compile(grammar, loaded.eos_ids)


def report(plan: EnginePlan, kernels: str, figures: EngineFigures) -> str:
    """Return the JSON document."""
    return document(
        "tlserve.bench.engine/1",
        plan=attrs.asdict(plan),
        kernels=kernels,
        steps=[_step(step) for step in figures.steps],
        sampling=[attrs.asdict(cost) for cost in figures.sampling],
        activations=[attrs.asdict(cost) for cost in figures.activations],
        through_http=None if figures.through_http is None else attrs.asdict(figures.through_http),
    )


def _step(step: StepFigures) -> dict[str, object]:
    work = {"work": "decode", "rows": step.rows} if step.rows else {"work": "prefill", "rows": 1}
    return {**work, **attrs.asdict(step, filter=attrs.filters.exclude("rows"))}


def print_steps(steps: Sequence[StepFigures], prefill_tokens: int) -> None:
    """Print the time of the engine's own work."""
    rows = [
        [
            f"decode, {step.rows} sequences" if step.rows else f"prefill, {prefill_tokens} tokens",
            f"{step.step_ms.median:.2f} ({step.step_ms.low:.2f} to {step.step_ms.high:.2f})",
            f"{step.tokens_per_s.median:.1f}",
            f"{step.outside_forward.median:.1%}",
        ]
        for step in steps
    ]
    print_table(["work", "ms per step, or per prompt", "tokens/s", "step outside forward"], rows)


def print_sampling(costs: Sequence[SamplingCost]) -> None:
    """Print what each kind of sampling adds to a step."""
    if costs:
        rows = [
            [cost.kind, str(cost.rows), f"{cost.step_ms.median:.2f}", written_ratio(cost.over_greedy)] for cost in costs
        ]
        print_table(["sampling", "sequences", "ms per step", "over greedy: of medians (lowest to highest)"], rows)


def print_activations(costs: Sequence[ActivationCost]) -> None:
    """Print what each type of activations costs."""
    if costs:
        rows = [
            [
                cost.activations,
                str(cost.rows) if cost.rows else "prefill",
                f"{cost.step_ms.median:.2f}",
                written_ratio(cost.over_first),
            ]
            for cost in costs
        ]
        print_table(["activations", "sequences", "ms per step", "over the first: of medians (lowest to highest)"], rows)


def print_through_http(found: ThroughHttp | None) -> None:
    """Print the time of a token through the server, over its time in the bare engine."""
    if found is not None:
        row = [f"{found.engine_ms:.2f}", f"{found.http_ms:.2f}", written_ratio(found.ratio)]
        print_table(["engine, ms per token", "through HTTP", "ratio of medians (lowest to highest)"], [row])
