"""Record the cases of vLLM's tests of parsers: what a model says, the tools of the request, and what vLLM reads.

Run by hand with the sources of vLLM 0.33.0 (its source distribution on the package index), unpacked: `python
tests/golden/make_vllm_cases.py PATH`. Needs pytest 9.2, pytest-asyncio 1.5, pytest-timeout 2.4, transformers 5.24 without torch,
openai 3.57, openai-harmony 0.0.8, mistral-common 1.13, fastapi 0.165, httpx, partial-json-parser, msgspec, regex, tiktoken and
pillow. Runs the tests with the stand-ins of `vllm_stand_ins.py`, and records what the parsers return in the tests that pass.
Writes `vllm_cases.json`. A test that fails with the stand-ins is left out.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_FILES = ("tool_parsers/test_*_tool_parser.py", "reasoning/test_*.py")
_LATE = 5
"""The seconds of a test, after which it is left out."""
_WHOLE = ("extract_tool_calls", "extract_reasoning", "parse")
_STREAMED = ("extract_tool_calls_streaming", "extract_reasoning_streaming", "parse_delta")


def _calls(found: Any) -> list[list[str]]:
    functions = [getattr(call, "function", call) for call in found or ()]
    return [[own.name, own.arguments or "{}"] for own in functions]


def _read(kind: str, found: Any) -> dict[str, Any]:
    """Return what a parser returned, as the members of a case."""
    if kind == "extract_reasoning":
        return {"reasoning": found[0], "content": found[1]}
    if kind == "parse":
        return {"reasoning": found[0], "content": found[1], "calls": _calls(found[2])}
    return {"content": found.content, "calls": _calls(found.tool_calls)}


def _tools(request: Any, parser: Any) -> dict[str, Any]:
    """Return the tools of a request or a parser: name -> schema."""
    offered = getattr(request, "tools", None) or getattr(parser, "tools", None) or getattr(parser, "_tools", None) or ()
    found = {}
    for tool in offered if isinstance(offered, list | tuple) else ():
        own = tool.get("function", tool) if isinstance(tool, dict) else getattr(tool, "function", tool)
        get = own.get if isinstance(own, dict) else functools.partial(getattr, own)
        found[get("name")] = get("parameters") if isinstance(get("parameters"), dict) else {}
    return found


class Recorder:
    """A plugin of pytest: wraps the parsers, and keeps what they return in tests that pass."""

    def __init__(self) -> None:
        self.cases: list[dict[str, Any]] = []
        self._found: list[dict[str, Any]] = []
        self._streams: list[dict[str, Any]] = []
        self._depth = 0

    def wrap_all(self) -> None:
        """Wrap every parser that can be imported."""
        for package in ("vllm.tool_parsers", "vllm.reasoning", "vllm.parser"):
            for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
                try:
                    importlib.import_module(found.name)
                except Exception as fault:
                    print(f"{found.name}: {fault}")
        for cls in _parsers():
            for name in (*_WHOLE, *_STREAMED):
                if callable(own := cls.__dict__.get(name)):
                    setattr(cls, name, self._wrapped(name, own))

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(parser: Any, *args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                found = function(parser, *args, **kwargs)
            finally:
                self._depth -= 1
            if self._depth == 0:
                keep = self._keep_whole if name in _WHOLE else self._keep_part
                keep(name, parser, args, kwargs, found)
            return found

        return wrapper

    def _keep_whole(self, kind: str, parser: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> None:
        text = kwargs.get("model_output", args[0] if args else None)
        request = next((own for own in (*args, *kwargs.values()) if hasattr(own, "tools")), None)
        if isinstance(text, str) and found is not None:
            self._found.append({**_begun(kind, parser, request), "said": text, **_read(kind, found)})

    def _keep_part(self, kind: str, parser: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> None:
        """Keep a part of a stream; after parts with a text before them, one without begins a new stream of its parser."""
        is_delta = kind == "parse_delta"
        part = kwargs.get("delta_text", next(iter(args[0 if is_delta else 2 :]), None))
        before = None if is_delta else kwargs.get("previous_text", next(iter(args), None))
        if not isinstance(part, str):
            return
        mine = [stream for stream in self._streams if stream["parser"] is parser]
        if not mine or (before == "" and mine[-1]["grows"]):
            request = next((own for own in (*args, *kwargs.values()) if hasattr(own, "tools")), None)
            mine = [{"parser": parser, "kind": kind, "said": "", "request": request, "deltas": [], "grows": False}]
            self._streams += mine
        mine[-1]["grows"] |= bool(before)
        mine[-1]["said"] += part
        mine[-1]["deltas"].append(found)

    def _ended_streams(self) -> Iterator[dict[str, Any]]:
        for stream in self._streams:
            calls: list[list[str]] = []
            texts = {"content": "", "reasoning": ""}
            for delta in filter(None, stream["deltas"]):
                for channel in texts:
                    texts[channel] += getattr(delta, channel, None) or ""
                for call in getattr(delta, "tool_calls", None) or ():
                    calls += [["", ""] for _ in range(call.index + 1 - len(calls))]
                    calls[call.index][0] += call.function.name or ""
                    calls[call.index][1] += call.function.arguments or ""
            begun = _begun(stream["kind"], stream["parser"], stream["request"])
            yield {**begun, "said": stream["said"], **texts, "calls": calls, "streamed": True}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Any:
        """Run a test, and keep its cases if it passes."""
        self._found.clear()
        self._streams.clear()
        self._depth = 0
        result = yield
        self.cases += [
            {"test": item.nodeid.split("::", 1)[1], **case} for case in (*self._found, *self._ended_streams())
        ]
        return result


def _begun(kind: str, parser: Any, request: Any) -> dict[str, Any]:
    kwargs = getattr(request, "chat_template_kwargs", None) or getattr(parser, "_chat_template_kwargs", None)
    name = type(parser).__module__.rpartition(".")[2]
    own = getattr(parser, "_parser_engine", None)
    if own is not None or name == "registered_adapters":
        name = type(own if own is not None else parser).__module__.rpartition(".")[2]
    case = {
        "parser": f"{name}.{type(parser).__name__}",
        "kind": kind.removesuffix("_streaming"),
        "tools": _tools(request, parser),
    }
    return {**case, "kwargs": kwargs} if isinstance(kwargs, dict) and kwargs else case


def _parsers() -> list[type]:
    bases = (("parser.abstract_parser", "Parser"), ("reasoning", "ReasoningParser"), ("tool_parsers", "ToolParser"))
    found: list[type] = [getattr(importlib.import_module(f"vllm.{module}"), name) for module, name in bases]
    for cls in found:
        found += [own for own in cls.__subclasses__() if own not in found]
    return found


def record(sources: Path, target: Path, files: list[str]) -> None:
    """Run files of one folder of tests, and write their cases to `target`."""
    sys.path.insert(0, str(Path(__file__).parent))
    importlib.import_module("vllm_stand_ins").install(sources)
    recorder = Recorder()
    recorder.wrap_all()
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "asyncio_mode=auto",
        "--timeout",
        str(_LATE),
        "--rootdir",
        str(sources),
    ]
    os.chdir(sources)
    pytest.main([*options, "--confcutdir", str(Path(files[0]).parent), *files], plugins=[recorder])
    target.write_text(json.dumps(recorder.cases, ensure_ascii=False, default=str), "utf-8")


def main() -> None:
    """Write the cases next to this script."""
    sources = Path(sys.argv[1]).resolve()
    if len(sys.argv) > 2:
        record(sources, Path(sys.argv[2]), sys.argv[3:])
        return
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for pattern in _FILES:
            target = Path(folder) / "cases.json"
            files = sorted(map(str, (sources / "tests").glob(pattern)))
            ran = subprocess.run(
                [sys.executable, __file__, str(sources), str(target), *files],
                capture_output=True,
                text=True,
                timeout=1800,
            )
            cases += json.loads(target.read_text("utf-8"))
            print(f"{pattern}: {ran.stdout.strip().splitlines()[-1]}", flush=True)
    write(cases, Path(__file__).with_name("vllm_cases.json"))


def write(cases: list[dict[str, Any]], target: Path) -> None:
    """Write each case once: those of whole answers, and streamed answers that no test reads whole."""
    schemas: list[Any] = []
    lines: dict[str, dict[str, Any]] = {}
    whole = {(_family(case), case["said"]) for case in cases if not case.get("streamed")}
    for case in cases:
        family = _family(case)
        if case.get("streamed") and (family, case["said"]) in whole:
            continue
        reads = {"extract_reasoning": "reasoning", "extract_tool_calls": "calls"}.get(case["kind"], "all")
        tools = {name: _place(schema, schemas) for name, schema in case["tools"].items()}
        key = json.dumps([family, reads, case["said"], tools], sort_keys=True)
        kept = {name: case[name] for name in ("content", "reasoning", "calls") if case.get(name)}
        about = {"streamed": True} if case.get("streamed") else {}
        lines.setdefault(key, {"parser": family, "said": case["said"], "reads": reads, "tools": tools, **kept, **about})
    rows = [json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in lines.values()]
    offered = json.dumps(schemas, ensure_ascii=False, separators=(",", ":"))
    target.write_text(f'{{"schemas":{offered},\n"cases":[\n' + ",\n".join(sorted(rows)) + "\n]}\n", "utf-8")
    print(f"{len(rows)} cases", Counter(case["parser"] for case in lines.values()))


def _family(case: dict[str, Any]) -> str:
    """Return the name of a parser without the words that all have."""
    name = case["parser"].partition(".")[0]
    for word in ("_tool_parser", "_reasoning_parser", "_engine"):
        name = name.removesuffix(word)
    return name


def _place(schema: Any, schemas: list[Any]) -> int:
    """Return the place of a schema in the list, where it is added if it is new."""
    if schema not in schemas:
        schemas.append(schema)
    return schemas.index(schema)


if __name__ == "__main__":
    main()
