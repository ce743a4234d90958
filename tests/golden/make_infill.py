"""Make `vocabularies/infill.json`: prompts of /infill as the server of llama.cpp makes them, on small vocabularies.

Run by hand, never in CI, with g++, gguf 0.19, a source tree of llama.cpp (b11434 made the file) and its build with shared
libraries:

    python -m tests.golden.make_infill .../llama.cpp .../build

The vocabularies are the byte-level one of `make_vocabularies.py` with the control tokens of a family behind it.
"""

import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.golden.make_vocabularies import HERE, write

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen": {
        "controls": [
            "<|fim_prefix|>",
            "<|fim_suffix|>",
            "<|fim_middle|>",
            "<|fim_pad|>",
            "<|repo_name|>",
            "<|file_sep|>",
        ],
        "flags": {"pre": "qwen2", "add_bos_token": False},
    },
    "granite": {
        "controls": ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<reponame>"],
        "flags": {"pre": "refact", "add_bos_token": True, "bos_token_id": 1},
    },
    "deepseek": {
        "controls": ["<\uff5cfim▁begin\uff5c>", "<\uff5cfim▁hole\uff5c>", "<\uff5cfim▁end\uff5c>"],
        "flags": {"pre": "deepseek-coder", "add_bos_token": True, "bos_token_id": 1},
    },
}
CODE = "def add(a, b):\n    return "
TEXTS = (CODE, "\n\nprint(add(1, 2))\n", "", "é<|fim_middle|>漢<fim_prefix>", " leading and trailing ", "x" * 40)
EXTRAS: tuple[list[dict[str, str]], ...] = (
    [],
    [{"text": "import sys\n", "filename": "main.py"}],
    [{"text": "a = 1\n"}, {"text": "b = 2\n", "filename": "sub/b.py"}, {"text": ""}],
)


def cases() -> list[dict[str, Any]]:
    """Return the requests."""
    sizes = {"n_batch": 2048, "n_predict": 64, "n_ctx": 4096}
    made = [
        {"input_prefix": prefix, "input_suffix": suffix, "prompt": prompt, "input_extra": EXTRAS[number % 3], **sizes}
        for number, (prefix, suffix, prompt) in enumerate(itertools.product(TEXTS, TEXTS, ("", "  x = 1")))
    ]
    long = {"input_prefix": CODE * 9, "input_suffix": TEXTS[1] * 9, "prompt": "    y"}
    for extra, n_ctx, n_predict in itertools.product((EXTRAS[0], EXTRAS[2] * 9), (128, 512), (16, 40)):
        made.append({**long, "input_extra": extra, "n_batch": 64, "n_predict": n_predict, "n_ctx": n_ctx})
    return made


def compiled(source: Path, build: Path, folder: Path) -> Path:
    """Return the program."""
    parts = ("include", "common", "tools/server", "tools/mtmd", "ggml/include", "vendor")
    libraries = build / "bin"
    linked = [f"-l{name}" for name in ("llama-server-impl", "llama-common", "mtmd", "llama", "ggml", "ggml-base")]
    subprocess.run(
        [
            *("g++", "-std=c++17", "-w", *(f"-I{source / part}" for part in parts), HERE / "llama_infill.cpp"),
            *("-o", folder / "infill", f"-L{libraries}", f"-Wl,-rpath,{libraries}", *linked),
        ],
        check=True,
    )
    return folder / "infill"


def vocabulary(family: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a family's vocabulary."""
    base = json.loads((HERE / "pre.json").read_text())["vocabulary"]
    controls = family["controls"]
    tokens, types = [*base["tokens"], *controls], [*base["token_type"], *[3] * len(controls)]
    return {**base, "tokens": tokens, "token_type": types, **family["flags"]}


def main(source: Path, build: Path) -> None:
    """Write the file."""
    given, made = cases(), {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = compiled(source, build, folder)
        for family, facts in FAMILIES.items():
            path = write(folder / "vocabulary.gguf", vocabulary(facts))
            data = "".join(json.dumps(case) + "\n" for case in given).encode()
            lines = subprocess.run([program, path], input=data, capture_output=True, check=True).stdout.decode()
            made[family] = {**facts, "ids": lines.splitlines()}
    kept = {"cases": given, "families": made}
    (HERE / "infill.json").write_text(json.dumps(kept, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
