"""`python -m tests.benchmarks attention`: attention's share of the f32 peak in prefill, and of the memory bandwidth in decode.

Compiles `attention_speed.c` with the kernels of this checkout, and of others that `--beside` names, and runs them in turn. Each
measures the peak, the bandwidth and the cases one after the other, so that shares are of the same minute. Owns the options, the
table and the JSON document. Needs a compiler (`CC`, by default gcc) and Linux.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import attrs
import tomli

from tests.kit.source_tree import CHECKOUT
from tlserve.bench.report import document
from tlserve.cli.bench.arguments import list_of, number_from
from tlserve.cli.bench.table import print_table, progress
from tlserve.errors import OperatorError
from tlserve.kernels.native import native_isas

NATIVE = Path("tlserve") / "kernels" / "native"
PROGRAM = Path(__file__).with_name("attention_speed.c")
PARTS = (
    *("forward", "attention_phases", "units", "step_work", "experts", "routing"),
    *("pack", "super_blocks", "weight_row", "threads", "find_kernels"),
)
CASES = ("prefill:512", "prefill:4096", "prefill:8192", "decode:4096:1", "decode:4096:8")


@attrs.frozen(kw_only=True)
class AttentionPlan:
    """What is measured; `cases` are `prefill:TOKENS` or `decode:CONTEXT:SEQUENCES`."""

    isa: str
    threads: Sequence[int]
    rounds: int
    heads: int
    kv_heads: int
    head_size: int
    half: bool
    cases: Sequence[str]


@attrs.frozen(kw_only=True)
class AttentionFigure:
    """The best of the rounds of one case. `bandwidth_gbs` is 0 for a prefill, which reads from the caches."""

    kernels: str
    threads: int
    case: str
    ms: float
    gflops: float
    peak_gflops: float
    gbs: float
    bandwidth_gbs: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    count = number_from(int, 1)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--repeat", type=count, default=5, help="rounds, of which the best counts (default 5)")
    parser.add_argument("--threads", type=list_of(count), default=(1,), help="numbers of threads, such as 1,2")
    parser.add_argument("--isa", default="", help="instruction set (default: the best one of this processor)")
    parser.add_argument("--heads", type=count, default=9, help="query heads (default 9)")
    parser.add_argument("--kv-heads", type=count, default=3, help="key heads (default 3)")
    parser.add_argument("--head-size", type=count, default=64, help="components of a head (default 64)")
    parser.add_argument("--kv-precision", choices=("f16", "f32"), default="f16", help="of stored keys and values")
    parser.add_argument("--cases", type=list_of(str), default=CASES, help="such as prefill:512,decode:4096:8")
    parser.add_argument(
        "--beside", type=Path, action="append", default=[], metavar="CHECKOUT", help="measure these kernels in turn too"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    plan = AttentionPlan(
        isa=arguments.isa or next(iter(native_isas()), ""),
        threads=arguments.threads,
        rounds=arguments.repeat,
        heads=arguments.heads,
        kv_heads=arguments.kv_heads,
        head_size=arguments.head_size,
        half=arguments.kv_precision == "f16",
        cases=arguments.cases,
    )
    with tempfile.TemporaryDirectory() as folder:
        programs = {
            str(tree): build(tree, Path(folder) / str(index))
            for index, tree in enumerate([CHECKOUT, *arguments.beside])
        }
        figures = measure(plan, programs)
    if arguments.json:
        print(document("tlserve.bench.attention/1", plan=attrs.asdict(plan), figures=list(map(attrs.asdict, figures))))
    else:
        print_figures(figures)
    return 0


def build(tree: Path, folder: Path) -> Path:
    """Compile the program with the kernels of the checkout `tree` into `folder`; return its path."""
    native = tree / NATIVE
    if not native.is_dir():
        raise OperatorError(f"--beside {tree}: no checkout, it has no {NATIVE}")
    folder.mkdir(parents=True)
    settings = tomli.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    (extension,) = settings["tool"]["setuptools"]["ext-modules"]
    compiler = [os.environ.get("CC", "gcc"), *extension["extra-compile-args"], f"-I{native}"]
    parts = [native / f"{part}.c" for part in PARTS]
    sources = [
        PROGRAM,
        *filter(Path.exists, parts),
        *sorted(native.glob("isa_*.c")),
    ]  # an older checkout may lack a part
    objects = [folder / f"{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(
            pool.map(
                lambda pair: _run([*compiler, "-c", str(pair[0]), "-o", str(pair[1])]),
                zip(sources, objects, strict=True),
            )
        )
    _run([*compiler, *map(str, objects), "-lm", "-o", str(folder / "attention_speed")])
    return folder / "attention_speed"


def measure(plan: AttentionPlan, programs: Mapping[str, Path]) -> list[AttentionFigure]:
    """Run the programs in turn; return the best of each case, in the order of the plan."""
    shape = [str(n) for n in (plan.heads, plan.kv_heads, plan.head_size, int(plan.half))]
    lines: dict[tuple[int, str], list[list[str]]] = {(t, name): [] for t in plan.threads for name in programs}
    with progress("runs", plan.rounds * len(lines)) as done:
        for _ in range(plan.rounds):
            for threads, name in lines:
                command = [str(programs[name]), plan.isa, str(threads), "1", *shape, *plan.cases]
                lines[threads, name] += [line.split() for line in _run(command).splitlines()]
                done()
    best = partial(_best, lines)
    return [best(threads, name, case) for threads in plan.threads for case in plan.cases for name in programs]


def _best(
    lines: Mapping[tuple[int, str], Iterable[Sequence[str]]], threads: int, name: str, case: str
) -> AttentionFigure:
    """Return the shortest time of attention and of reading, and the highest peak of all programs with these threads."""
    peak = max(float(line[1]) for (t, _), found in lines.items() if t == threads for line in found if line[0] == "peak")
    numbers = [list(map(float, line[1:])) for line in lines[threads, name] if line[0] == case]
    whole, one_key, reading, flops, size = (min(column) for column in zip(*numbers, strict=True))
    seconds = whole - one_key
    return AttentionFigure(
        kernels=name,
        threads=threads,
        case=case,
        ms=seconds * 1e3,
        gflops=flops / seconds / 1e9,
        peak_gflops=peak,
        gbs=size / seconds / 1e9 if reading else 0,
        bandwidth_gbs=size / reading / 1e9 if reading else 0,
    )


def print_figures(figures: Sequence[AttentionFigure]) -> None:
    """Print a row for each case."""
    rows = [
        [
            figure.case,
            str(figure.threads),
            *([figure.kernels] if len({f.kernels for f in figures}) > 1 else []),
            f"{figure.ms:.2f}",
            f"{figure.gflops:.1f} of {figure.peak_gflops:.1f}",
            f"{figure.gflops / figure.peak_gflops:.0%}",
            f"{figure.gbs:.1f} of {figure.bandwidth_gbs:.1f}" if figure.gbs else "",
            f"{figure.gbs / figure.bandwidth_gbs:.0%}" if figure.gbs else "",
        ]
        for figure in figures
    ]
    several = ["kernels"] if len({f.kernels for f in figures}) > 1 else []
    print_table(["case", "threads", *several, "ms", "GFLOPS", "share", "GB/s", "share"], rows)


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OperatorError(f"{shlex.join(command)} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout
