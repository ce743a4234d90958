"""The time of chat templates: `python -m tests.benchmarks.templates`, beside plain jinja2 with the settings of transformers.

Each public template renders 1,000 messages with 100 tools, and then a prompt of 20 turns is built from it: rendered and encoded.
The processor time of the fastest of `--repeat` runs counts. `--output FILE` writes what the page of templates prints.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from docs.make.templates_page import SOURCES, parsed, variables
from tests.kit.chat.conversations import CLOCK, MANY, conversations
from tlserve.chat.messages import Role, Turn
from tlserve.chat.prompt import encode_chat
from tlserve.chat.templates.sandbox import GenerationTag
from tlserve.cli.bench.table import print_table
from tlserve.errors import ClientError
from tlserve.text.byte_tokenizer import ByteTokenizer

FAILURES = (jinja2.TemplateError, TypeError, ValueError, AttributeError, LookupError, ClientError)
TURNS = 20


@attrs.frozen
class TemplateTimes:
    """Milliseconds of one template; None where it refuses the conversation, or fails."""

    ms: float | None
    jinja2_ms: float | None
    prompt_ms: float | None

    @property
    def ratio(self) -> float | None:
        """Return our time over that of plain jinja2."""
        return None if self.ms is None or self.jinja2_ms is None else self.ms / self.jinja2_ms


def plain_environment() -> ImmutableSandboxedEnvironment:
    """Return the environment that transformers sets up, without limits and without knowledge of who wrote what."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise, strftime_now=CLOCK.strftime)
    return environment


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def fastest_ms(run: Callable[[], object], repeat: int) -> float | None:
    """Return the processor time of the fastest run, or None if it fails."""
    times = []
    for _ in range(repeat):
        began_s = time.process_time()
        try:
            run()
        except FAILURES:
            return None
        times.append(1000 * (time.process_time() - began_s))
    return min(times)


def long_chat() -> list[Turn]:
    """Return a chat of 20 turns."""
    texts = {
        Role.USER: "Tell me more about the lighthouse. " * 4,
        Role.ASSISTANT: "It stands on a long stone pier. " * 12,
    }
    return [Turn(role, texts[role]) for role in [Role.USER, Role.ASSISTANT] * (TURNS // 2 - 1)] + [
        Turn(Role.USER, "Thank you. Who built it?")
    ]


def measure(name: str, repeat: int) -> TemplateTimes:
    """Return the times of the template called `name`."""
    ours, turns = parsed(name), long_chat()
    if ours is None:
        return TemplateTimes(None, None, None)
    given = variables(conversations()[MANY])
    return TemplateTimes(
        fastest_ms(lambda: ours.render(given, clock=lambda: CLOCK), repeat),
        _plain_ms(name, given, repeat),
        fastest_ms(lambda: encode_chat(ours, ByteTokenizer(), turns), 8 * repeat),
    )


def _plain_ms(name: str, given: Mapping[str, Any], repeat: int) -> float | None:
    try:
        template = plain_environment().from_string(SOURCES[name])
    except jinja2.TemplateError:
        return None
    plain = json.loads(json.dumps(dict(given)))
    return fastest_ms(lambda: template.render(copy.copy(plain)), repeat)


def processor() -> str:
    """Return the name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{named[0]}, {len(named)} cores" if named else platform.processor()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.templates", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="runs of which the fastest counts (default 5)")
    parser.add_argument("--only", default="", help="templates whose names have this in them")
    parser.add_argument("--output", type=Path, help="file for the figures, as JSON")
    arguments = parser.parse_args()
    found = {name: measure(name, arguments.repeat) for name in SOURCES if arguments.only in name}
    rows = [[name, *map(_written, (t.ms, t.jinja2_ms, t.ratio, t.prompt_ms))] for name, t in found.items()]
    print_table(["template", "ms", "jinja2 ms", "ratio", f"{TURNS} turns ms"], rows)
    ratios = [times.ratio for times in found.values() if times.ratio is not None]
    if ratios:
        print(f"median ratio {statistics.median(ratios):.2f} over {len(ratios)} templates")
    if arguments.output:
        document = {
            "processor": processor(),
            "python": platform.python_version(),
            "templates": {
                name: {key: value and round(value, 3) for key, value in attrs.asdict(t).items()}
                for name, t in found.items()
            },
        }
        arguments.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _written(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
