"""One load of a comparison, sent by tlserve's own generator or by another program, and the three figures of each run.

Owns the two generators. The other program is a command whose last line of output is JSON with `out_tok_s`, `ttft_p50_ms` and
`tpot_p50_ms`, so that the figures do not come from this package. Does not know what is compared.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable

import attrs
import msgspec

from tests.benchmarks.processes import output_of
from tlserve.bench.load import Closed
from tlserve.bench.run import LoadPlan, run_bench
from tlserve.bench.target import TargetServer
from tlserve.bench.workload import Workload
from tlserve.errors import OperatorError, ServerFault


@attrs.frozen(kw_only=True)
class LoadCase:
    """`streams` clients that read `rounds` answers each; a system prompt of `shared_words` precedes the `words` of a prompt."""

    name: str
    streams: int
    rounds: int
    words: int = 64
    shared_words: int = 0
    output_tokens: int = 64


@attrs.frozen
class LoadFigures:
    """The figures of a run that the table uses; times are medians over the requests, in milliseconds."""

    output_tokens_per_s: float
    first_token_ms: float
    per_token_ms: float


Generate = Callable[[TargetServer, LoadCase, int], Awaitable[LoadFigures]]
"""Send a load to a target; the number is the seed of its prompts. Raises ServerFault or OperatorError."""


async def generate(target: TargetServer, case: LoadCase, seed: int) -> LoadFigures:
    """Send the load from this process; raises ServerFault if a request fails."""
    workload = Workload(prompt_words=case.words, shared_words=case.shared_words, output_tokens=case.output_tokens)
    plan = LoadPlan(loads=(Closed(case.streams),), workload=workload, rounds=case.rounds, seed=seed)
    figures = (await run_bench(plan, [target], lambda: None))[0].figures
    if figures.errors or figures.first_token_ms is None or figures.per_token_ms is None:
        raise ServerFault(f"{target.name} did not answer every request of {case.name}: {dict(figures.errors)}")
    return LoadFigures(figures.output_tokens_per_s, figures.first_token_ms.p50, figures.per_token_ms.p50)


def outside_generator(command: str) -> Generate:
    """Return a generator that runs a command with {host}, {port}, {model}, {streams}, {requests} and so on filled in."""

    async def generate_outside(target: TargetServer, case: LoadCase, seed: int) -> LoadFigures:
        return _read(command, await output_of(_words(command, target, case, seed)))

    return generate_outside


def _words(command: str, target: TargetServer, case: LoadCase, seed: int) -> list[str]:
    values = {
        **attrs.asdict(case),
        "host": target.origin.host,
        "port": target.origin.port,
        "model": target.model,
        "requests": case.streams * case.rounds,
        "seed": seed,
    }
    try:
        return [word.format(**values) for word in shlex.split(command)]
    except (KeyError, IndexError, ValueError) as error:
        known = ", ".join(f"{{{name}}}" for name in values)
        raise OperatorError(
            f"the load generator {command!r} has a placeholder without a value ({error}); known are {known}"
        ) from None


def _read(command: str, printed: str) -> LoadFigures:
    try:
        found = msgspec.json.decode(printed.strip().splitlines()[-1])
        figures = [float(found[key]) for key in ("out_tok_s", "ttft_p50_ms", "tpot_p50_ms")]
    except (msgspec.DecodeError, IndexError, KeyError, TypeError, ValueError):
        raise OperatorError(
            f"the load generator {command!r} did not print its figures but {printed[-300:]!r}"
        ) from None
    return LoadFigures(*figures)
