"""The gain of drafting from the prompt: `python -m tests.benchmarks.speculation`, with the real model in the model cache.
Each kind of prompt is answered with drafts and without, in turn, and the answers must be the same to the bit. The ratio of a
pair is of its tokens per second while decoding. "free" is a story at temperature 1: little in it repeats.
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter

import attrs

from tlserve.chat.messages import Role, Turn
from tlserve.chat.prompt import encode_chat
from tlserve.chat.templates.template import Template
from tlserve.config.settings import EngineSettings
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.generation import GenerationRequest, TokenEvent
from tlserve.programs.local_models import load
from tlserve.sampling_params import SamplingParams
from tlserve.text.tokenizer import build_tokenizer

TEXT = """The lighthouse at the end of the long stone pier was built in the year of the great storm. Before that time, ships that
came into the harbour at night had to trust the lamps in the windows of the fishermen's houses, and many of them did not see
the rocks until it was too late. The people of the town gathered money for nine years. They bought granite from a quarry in
the north, and they hired an engineer who had already built two towers on the coast."""

CODE = """import os
import sys
import json

PORT = 8080
HOST = "127.0.0.1"

def read_settings(path):
    with open(path) as file:
        return json.load(file)

def write_settings(path, settings):
    with open(path, "w") as file:
        json.dump(settings, file)

def main():
    settings = read_settings(sys.argv[1])
    settings["port"] = PORT
    settings["host"] = HOST
    write_settings(sys.argv[1], settings)

if __name__ == "__main__":
    main()
"""
BEGUN = CODE[: CODE.index("HOST =")].replace("8080", "9090").rstrip()

GREEDY, FREE = SamplingParams(temperature=0.0), SamplingParams(temperature=1.0)


@attrs.frozen
class Kind:
    """A prompt, its sampling, and the beginning of its answer (which shows a small model what is expected)."""

    question: str
    sampling: SamplingParams = GREEDY
    begun: str = ""


KINDS = {
    "repeat": Kind(f"Repeat this text word for word:\n\n{TEXT}"),
    "edit": Kind(
        f"Here is a program:\n\n```python\n{CODE}```\n\nWrite the same program again, with the port 9090 instead of 8080.",
        begun=f"```python\n{BEGUN}\n",
    ),
    "free": Kind("Write a long story about a clockmaker and a storm, full of surprises.", FREE),
}


@attrs.frozen
class LoadRun:
    """One run: its speed, its answers, and how many of the drafted tokens were drawn."""

    tokens_per_s: float
    answers: dict[int, list[tuple[int, float | None]]]
    drafted: int
    accepted: int


class Bench:
    """One loaded model."""

    def __init__(self, model_dir: str, answer_tokens: int) -> None:
        self._loaded = load(EngineSettings(model_dir=model_dir))
        self._tokenizer = build_tokenizer(self._loaded.metadata)
        self._template = Template.parse(self._loaded.chat_template or "")
        self._answer_tokens = answer_tokens

    def run(self, kind: str, streams: int, speculative: str) -> LoadRun:
        """Answer the prompt `streams` times at once, with different seeds, so that free answers differ."""
        asked = KINDS[kind]
        prompt = encode_chat(self._template, self._tokenizer, [Turn(Role.USER, asked.question)]).ids
        prompt = (*prompt, *self._tokenizer.encode(asked.begun))
        config = EngineConfig(speculative=speculative, speculative_tokens=EngineSettings().speculative_tokens)
        engine = Engine(self._loaded.model, config)
        waiting = {
            engine.add_request(
                GenerationRequest(
                    prompt=prompt,
                    max_tokens=self._answer_tokens,
                    seed=seed,
                    sampling=asked.sampling,
                    stop_ids=self._loaded.eos_ids,
                    logprobs=0,
                )
            )
            for seed in range(streams)
        }
        return self._time(engine, waiting)

    def _time(self, engine: Engine, waiting: set[int]) -> LoadRun:
        answers: dict[int, list[tuple[int, float | None]]] = {key: [] for key in waiting}
        began, before = perf_counter(), 0
        while engine.has_work:
            for event in engine.step():
                if isinstance(event.what, TokenEvent):
                    answers[event.key].append((event.what.token, event.what.logprob))
            if waiting:  # the time begins when every stream has its first token
                waiting -= {key for key, answer in answers.items() if answer}
                began, before = perf_counter(), sum(map(len, answers.values()))
        tokens = sum(map(len, answers.values())) - before
        found = engine.statistics()
        return LoadRun(
            tokens / (perf_counter() - began), answers, found.drafted_tokens_total, found.accepted_tokens_total
        )


def compare(bench: Bench, kind: str, streams: int, pairs: int) -> str:
    """Return one line of the table; raises AssertionError where drafts change an answer."""
    plain, drafted = [], []
    for _ in range(pairs):
        plain.append(bench.run(kind, streams, "none"))
        drafted.append(bench.run(kind, streams, "prompt_lookup"))
        assert plain[-1].answers == drafted[-1].answers, "drafts changed an answer"
    ratios = sorted(b.tokens_per_s / a.tokens_per_s for a, b in zip(plain, drafted, strict=True))
    fastest = max(r.tokens_per_s for r in drafted) / max(r.tokens_per_s for r in plain)
    last = drafted[-1]
    return (
        f"{kind:8}{streams:3} streams  plain {statistics.median(r.tokens_per_s for r in plain):7.1f}/s"
        f"  drafted {statistics.median(r.tokens_per_s for r in drafted):7.1f}/s"
        f"  ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}; of the fastest {fastest:.2f})"
        f"  {last.accepted} of {last.drafted} drafts drawn"
    )


def main() -> None:
    """Measure and print one line for each kind and number of streams."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smol-135m")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    given = parser.parse_args()
    bench = Bench(given.model, given.tokens)
    for streams in given.streams:
        for kind in given.kinds:
            print(compare(bench, kind, streams, given.pairs), flush=True)


if __name__ == "__main__":
    main()
