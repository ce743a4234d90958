"""`python -m tests.benchmarks embeddings`: sentences per second of an encoder, beside torch, ONNX Runtime and OpenVINO.

From token ids to normalised vectors, without HTTP and without tokenising; two threads each, in turn, in one run. Owns the cases,
the table and the JSON document; `peers` has the other programs, in the environment of `--python`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.bench.report import document
from tlserve.cli.bench.arguments import list_of, number_from
from tlserve.cli.bench.table import print_table
from tlserve.config.paths import find_model
from tlserve.engine.pooling import HiddenSum
from tlserve.errors import OperatorError
from tlserve.kernels.choose import KernelChoice
from tlserve.kernels.interface import Model, StepBatch
from tlserve.model.load import load_model

PEERS = ("torch", "onnxruntime", "onnxruntime-int8", "openvino")
OURS = {"tlserve": "stored", "tlserve q8_0": "q8_0"}
TOKENS_PER_WORD = 1.25
THREADS = 2


@attrs.frozen(kw_only=True)
class EmbeddingFigure:
    """The best round of one program in one case. `cosine`: the least one with the vectors of the first program."""

    program: str
    words: int
    batch: int
    ms: float
    sentences_per_s: float
    cosine: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    count = number_from(int, 1)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--model", default="minilm", help="encoder with mean pooling (default minilm)")
    parser.add_argument("--words", type=list_of(count), default=(20, 200), help="words of a sentence (default 20,200)")
    parser.add_argument("--batch", type=list_of(count), default=(1, 32), help="sentences of a call (default 1,32)")
    parser.add_argument("--rounds", type=count, default=3, help="turns of each program (default 3)")
    parser.add_argument("--calls", type=count, default=3, help="calls of a turn (default 3)")
    parser.add_argument("--python", default="", help="interpreter with the peers' packages (default: no peers)")
    parser.add_argument("--peers", type=list_of(str), default=PEERS, help=f"of {', '.join(PEERS)}")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    path = Path(arguments.model) if Path(arguments.model).is_dir() else find_model(arguments.model)
    if path is None:
        raise OperatorError(f"there is no model {arguments.model}; `tlserve pull minilm` fetches one")
    with ExitStack() as stack:
        loaded = {
            name: load_model(path, threads=THREADS, kernels=KernelChoice(weights=weights)).model
            for name, weights in OURS.items()
        }
        programs: dict[str, Any] = {name: own_encode(model) for name, model in loaded.items()}
        if arguments.python:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for peer in arguments.peers:
                programs[peer] = stack.enter_context(peer_encode(arguments.python, peer, path, folder))
        vocabulary = loaded["tlserve"].spec.vocabulary_size
        figures = [
            figure
            for words in arguments.words
            for batch in arguments.batch
            for figure in measure(programs, words, drawn(words, batch, vocabulary), arguments.rounds, arguments.calls)
        ]
    if arguments.json:
        print(document("tlserve.bench.embeddings/1", figures=list(map(attrs.asdict, figures))))
    else:
        print_table(
            ("program", "words", "batch", "ms", "sentences/s", "cosine"),
            [
                (f.program, str(f.words), str(f.batch), f"{f.ms:.1f}", f"{f.sentences_per_s:.1f}", f"{f.cosine:.6f}")
                for f in figures
            ],
        )
    return 0


def drawn(words: int, batch: int, vocabulary: int) -> NDArray[np.int64]:
    """Return the ids of `batch` sentences of so many words and two tokens around them."""
    return np.random.default_rng(words).integers(vocabulary // 8, vocabulary, (batch, 2 + int(words * TOKENS_PER_WORD)))


def measure(
    programs: Mapping[str, Any], words: int, ids: NDArray[np.int64], rounds: int, calls: int
) -> list[EmbeddingFigure]:
    """Return the figures of one case; the programs take turns."""
    best = dict.fromkeys(programs, float("inf"))
    vectors: dict[str, NDArray[np.float64]] = {}
    for _ in range(rounds):
        for name, encode in programs.items():
            ms, found = encode(ids, calls)
            best[name], vectors[name] = min(best[name], ms), np.asarray(found, np.float64)
    truth = next(iter(vectors.values()))
    return [
        EmbeddingFigure(
            program=name,
            words=words,
            batch=len(ids),
            ms=ms,
            sentences_per_s=len(ids) / ms * 1e3,
            cosine=float((vectors[name] * truth).sum(axis=1).min()),
        )
        for name, ms in best.items()
    ]


def own_encode(model: Model) -> Any:
    """Return the function of tlserve: ids and calls -> milliseconds of the best call, and the vectors."""

    def encode(ids: NDArray[np.int64], calls: int) -> tuple[float, Sequence[NDArray[np.float32]]]:
        best, vectors = float("inf"), list[NDArray[np.float32]]()
        for _ in range(calls):
            began = time.perf_counter()
            vectors = encode_all(model, ids)
            best = min(best, (time.perf_counter() - began) * 1e3)
        return best, vectors

    return encode


def encode_all(model: Model, ids: NDArray[np.int64]) -> list[NDArray[np.float32]]:
    """Return the vector of every row of `ids`, all in one step."""
    sentences, tokens = ids.shape
    batch = StepBatch(
        tokens=ids.reshape(-1).astype(np.int32),
        positions=np.tile(np.arange(tokens, dtype=np.int32), sentences),
        row_starts=np.arange(sentences + 1, dtype=np.int32) * np.int32(tokens),
        block_tables=(np.zeros(1, np.int32),) * sentences,
        logit_rows=np.zeros(0, np.int32),
        hidden_rows=np.arange(ids.size, dtype=np.int32),
    )
    hidden = model.forward(batch, model.new_kv_store(1, 16)).hidden
    sums = [HiddenSum(model.spec.pooling) for _ in range(sentences)]
    for total, rows in zip(sums, np.split(hidden, sentences), strict=True):
        total.add(rows)
    return [total.embedding() for total in sums]


@contextmanager
def peer_encode(python: str, peer: str, model: Path, folder: Path) -> Iterator[Any]:
    """Start a peer, and give its function; its process ends with the block."""
    command = [python, str(Path(__file__).with_name("peers.py")), peer, str(model), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        to_peer, from_peer = process.stdin, process.stdout

        def answer() -> Mapping[str, Any]:
            for line in from_peer:
                if line.startswith("{"):
                    found: Mapping[str, Any] = json.loads(line)
                    return found
            raise OperatorError(f"the peer {peer} ended: {python} must have its packages")

        def encode(ids: NDArray[np.int64], calls: int) -> tuple[float, Any]:
            to_peer.write(json.dumps({"ids": ids.tolist(), "repeat": calls}) + "\n")
            to_peer.flush()
            found = answer()
            return found["ms"], found["vectors"]

        answer()
        try:
            yield encode
        finally:
            to_peer.close()
