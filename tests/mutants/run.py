"""Break the server once in each way that the reference warns of, and check that the named test fails.

    python -m tests.mutants.run [s05 ...]

Each `*.patch` here is one defect: a head with the lines `Pitfall:`, `Symptom:` and `Named test:`, then a unified diff against
the sources. A patch is applied to a copy of the tree, and only its named test runs there: it must fail by an assertion, or not
end within `TIMEOUT_S`. Without a patch every named test must pass. One line per mutant; the exit code is 1 if one
survives or does not apply. Needs git, for `git apply`, and nothing of this checkout except its files.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
COPIED = ("tlserve", "tests", "specs", "pyproject.toml", "runtime.toml")
TIMEOUT_S = 60.0
AT_ONCE = 2

_NAMED_TEST = re.compile(r"^Named test: (?P<id>tests/[\w/]+\.py::\w+)$", re.MULTILINE)
_BY_ASSERTION = re.compile(r"assert\b|AssertionError|Failed: ")  # pytest.fail and pytest.raises say "Failed"
_PLUGINS = ("-p", "no:cacheprovider", "-p", "pytest_trio.plugin")  # others take longer to load than the tests to run
_WHERE_IS_IT = "import sys, tlserve; sys.stdout.write(tlserve.__file__)"


@dataclass(frozen=True)
class Mutant:
    """One patch and the test that must fail with it."""

    path: Path

    @property
    def name(self) -> str:
        """Return the file's name without its suffix."""
        return self.path.stem

    @property
    def named_test(self) -> str:
        """Return the id of the named test; raises ValueError if the head does not give it."""
        found = _NAMED_TEST.search(self.path.read_text(encoding="utf-8"))
        if found is None:
            raise ValueError(f"{self.path.name} has no line 'Named test: tests/...py::test_...'")
        return found["id"]


@dataclass(frozen=True)
class Verdict:
    """The result of a run: failed or not, and in words."""

    red: bool
    said: str
    seconds: float = 0.0


def mutants(only: Sequence[str] = ()) -> list[Mutant]:
    """Return all mutants in order, or those whose name begins with one of `only`."""
    found = [Mutant(path) for path in sorted(Path(__file__).parent.glob("*.patch"))]
    return [mutant for mutant in found if not only or mutant.name.startswith(tuple(only))]


# --- a copy of the tree


@contextlib.contextmanager
def copied_tree() -> Iterator[Path]:
    """Yield a copy of the files that the named tests need, in its own folder."""
    with tempfile.TemporaryDirectory(prefix="tlserve-mutant-") as folder:
        copy = Path(folder).resolve() / "tree"
        copy.mkdir()
        for name in COPIED:
            source = CHECKOUT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, copy / name)
        yield copy


def environment(copy: Path) -> dict[str, str]:
    """Return an environment in which `copy` is imported instead of an installed package, and git sees no other tree."""
    return {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "GIT_CEILING_DIRECTORIES": str(copy.parent),
    }


def apply(mutant: Mutant, copy: Path) -> str:
    """Apply the patch; return git's error, or ""."""
    done = subprocess.run(
        ["git", "apply", "--verbose", str(mutant.path)],
        cwd=copy,
        env=environment(copy),
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stderr.strip()


def check_imported(copy: Path) -> None:
    """Raise RuntimeError if `import tlserve` there does not import the copy but an installed package."""
    command = [sys.executable, "-c", _WHERE_IS_IT]
    found = subprocess.run(command, cwd=copy, env=environment(copy), capture_output=True, text=True, check=True).stdout
    if not Path(found).resolve().is_relative_to(copy):
        raise RuntimeError(f"the tests would import {found}, not the copy in {copy}")


# --- a run of tests in it


def run_tests(copy: Path, tests: Sequence[str], timeout_s: float = TIMEOUT_S) -> Verdict:
    """Run `tests` in `copy`; a failure is a failed assertion, or no end within `timeout_s`."""
    report = copy.parent / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", *_PLUGINS, f"--junitxml={report}", *tests]
    started = time.monotonic()
    with (copy.parent / "output.txt").open("w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, cwd=copy, env=environment(copy), stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return Verdict(True, f"no end within {timeout_s:.0f} s", timeout_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        red, said = _judge(code, report, output.read())
    return Verdict(red, said, time.monotonic() - started)


def _judge(code: int, report: Path, output: str) -> tuple[bool, str]:
    """Return whether the run failed as it must, and its output: an error of another kind proves nothing."""
    if code == 0:
        return False, "passed"
    failures = list(ET.parse(report).iter("failure")) if code == 1 and report.is_file() else []
    messages = [" ".join((failure.get("message") or "").split()) for failure in failures]
    asserted = [message for message in messages if _BY_ASSERTION.match(message)]
    if asserted:
        return True, asserted[0][:90]
    return False, f"ended otherwise than by an assertion: {(messages or [output.strip()[-2000:]])[0]}"


# --- all of them


def try_mutant(mutant: Mutant) -> Verdict:
    """Apply `mutant` to a copy and run its named test there."""
    with copied_tree() as copy:
        trouble = apply(mutant, copy)
        if trouble:
            return Verdict(False, f"the patch does not apply to the sources:\n{trouble}")
        check_imported(copy)
        return run_tests(copy, [mutant.named_test])


def try_unpatched(tests: Sequence[str]) -> Verdict:
    """Run every named test in a copy as it is."""
    with copied_tree() as copy:
        check_imported(copy)
        return run_tests(copy, tests, 3 * TIMEOUT_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants and return the exit code."""
    parser = argparse.ArgumentParser(description="show that each named test sees its mutant")
    parser.add_argument("only", nargs="*", help="beginnings of names, such as s05; none: all")
    chosen = mutants(parser.parse_args(arguments).only)
    if not chosen:
        parser.error("there is no mutant of that name")
    started = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        unpatched = threads.submit(try_unpatched, sorted({mutant.named_test for mutant in chosen}))
        survivors = sum(map(_tell, chosen, threads.map(try_mutant, chosen)))
        sound = unpatched.result().said == "passed"
    print(f"without a patch: {'every named test passes' if sound else unpatched.result().said}")
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants killed in {time.monotonic() - started:.0f} s")
    return 1 if survivors or not sound else 0


def _tell(mutant: Mutant, verdict: Verdict) -> bool:
    """Print the mutant's line; return whether it survived."""
    word = "killed  " if verdict.red else "SURVIVED"
    test = mutant.named_test.rpartition("::")[2]
    print(f"{word} {mutant.name:<45} {verdict.seconds:4.1f} s  {test}: {verdict.said}", flush=True)
    return not verdict.red


if __name__ == "__main__":
    sys.exit(main())
