"""The quick check before a commit: lint, types, house tests and fast tests, in under two minutes on two cores.

    python -m tests.check [--coverage] [NAME ...]

Runs the steps two at a time and prints one line for each with its time, then what the failed ones printed. NAME keeps the steps
whose name contains it. The exit code is 1 if a step fails. Slow tests, and tests that need the real models or Ray, are left out.
With --coverage the tests are measured, and one more step fails below the floor in pyproject.toml; it takes about twice as long.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
AT_ONCE = 2
FAST = "not slow and not real_model and not ray"
PYTEST = ("pytest", "-q", "--no-header", "--tb=short", "--maxfail=20", "-p", "no:cacheprovider")
MEASURED = ("coverage", "run", "--parallel-mode", "-m")

# The folders of tests/ in groups that take about the same time; a folder that is not named here is in the last group.
GROUPS = (("cli",), ("conformance", "engine", "fleet", "model"), ("chat", "kit"))


@dataclass(frozen=True)
class Step:
    """A module that this Python runs, with its arguments."""

    name: str
    arguments: tuple[str, ...]

    def measured(self) -> Step:
        """Return the same step under coverage if it runs tests."""
        return Step(self.name, (*MEASURED, *self.arguments)) if self.arguments[0] == "pytest" else self


@dataclass(frozen=True)
class Outcome:
    """How a step ended."""

    step: Step
    code: int
    seconds: float
    output: str

    def line(self) -> str:
        """Return the line that is printed when the step ends."""
        return f"{'failed' if self.code else 'ok':6}  {self.seconds:6.1f} s  {self.step.name}"


def all_steps() -> list[Step]:
    """Return the steps, the longest first."""
    folders = sorted(path.name for path in (CHECKOUT / "tests").iterdir() if any(path.glob("**/test_*.py")))
    rest = tuple(folder for folder in folders if folder != "house" and not any(folder in group for group in GROUPS))
    return [
        Step("mypy", ("mypy", "--no-error-summary")),
        *(_fast_tests(group) for group in (rest, *GROUPS)),
        Step("house tests", (*PYTEST, "-m", FAST, "tests/house")),
        Step("ruff check", ("ruff", "check", "--quiet", ".")),
        Step("ruff format", ("ruff", "format", "--quiet", "--check", ".")),
    ]


def _fast_tests(folders: Sequence[str]) -> Step:
    title = ", ".join(folders) if len(folders) < 5 else "other folders"
    return Step(f"fast tests: {title}", (*PYTEST, "-m", FAST, *(f"tests/{folder}" for folder in folders)))


def run(step: Step) -> Outcome:
    """Run one step to its end."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", *step.arguments],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Outcome(step, done.returncode, time.monotonic() - begin, done.stdout)


def check(steps: Sequence[Step]) -> list[Outcome]:
    """Run the steps, print the line of each when it ends, and return the failed ones."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        failed = []
        for ended in as_completed([pool.submit(run, step) for step in steps]):
            outcome = ended.result()
            print(outcome.line(), flush=True)
            failed += [outcome] if outcome.code else []
    return failed


REPORT = (
    Step("coverage data", ("coverage", "combine", "--quiet")),
    Step("coverage", ("coverage", "report", "--skip-covered", "--sort=cover")),
)


def report_coverage() -> list[Outcome]:
    """Put the measurements together, print the total, and return the failed steps."""
    outcomes = [run(step) for step in REPORT]
    print(outcomes[-1].line(), *(line for line in outcomes[-1].output.splitlines() if line.startswith("TOTAL")))
    return [outcome for outcome in outcomes if outcome.code]


def main(words: Sequence[str]) -> int:
    """Check, print the output of what failed, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.check", description="Run the quick checks.")
    parser.add_argument("--coverage", action="store_true", help="measure the tests, and fail below the floor")
    parser.add_argument("names", nargs="*", metavar="NAME", help="run only the steps whose name contains NAME")
    arguments = parser.parse_args(words)
    begin = time.monotonic()
    names = arguments.names
    steps = [step for step in all_steps() if not names or any(name in step.name for name in names)]
    failed = check([step.measured() for step in steps] if arguments.coverage else steps)
    if arguments.coverage:
        failed += report_coverage()
    for outcome in failed:
        print(f"\n== {outcome.step.name}\n{outcome.output.rstrip()}")
    print(f"\n{'failed' if failed or not steps else 'all passed'} in {time.monotonic() - begin:.0f} s")
    return 1 if failed or not steps else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
