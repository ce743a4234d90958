"""Make `vocabularies/charsmap.json`: a small table of replacements that SentencePiece compiled, and llama.cpp's ids with it.

Run by hand, never in CI, as `make_vocabularies.py`, in an environment that also has sentencepiece 0.2.3:

    python tests/golden/make_charsmap.py .../llama.cpp

The vocabulary is that of the kind "t5" in `kinds.json`.
"""

import io
import json
import sys
import tempfile
from pathlib import Path

import sentencepiece  # type: ignore[import-not-found]
from make_vocabularies import HERE, compiled, ids, write  # type: ignore[import-not-found]

RULES = {
    "\n": " ",
    "\t": " ",
    "\u00a0": " ",
    "\ufb01": "fi",
    "\u2460": "1",
    "\uff21": "A",
    "\ufdfa": "sall allah",
    "e\u0301": "\u00e9",
    "a\u0308": "\u00e4",
    "a\u0308\u0304": "\u01df",
    "\uff76": "\u30ab",
    "\uff76\uff9e": "\u30ac",
    "\u200b": "",
    "--": "-",
}
TEXTS = (
    "the \ufb01rst \u2460 \uff21 \ufdfa",
    "e\u0301 a\u0308 a\u0308\u0304 a\u0308\u0301 e \u0301",
    "\uff76\uff9e \uff76 \uff9e\uff76\uff9e",
    "a\u200bb\u00a0c\td\n\ne",
    "-- --- ---- - -",
    "\u200b",
    "plain text",
    "\u00e9\u01df\u30ac \U0001f600 -\u200b-",
)


def field(message: bytes, wanted: int) -> bytes:
    """Return the bytes of field `wanted` of a protobuf message, the last one if it is there more than once."""
    found, at = b"", 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (message[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if message[at - 1] < 128:
                return value

    while at < len(message):
        key = number()
        size = {0: 0, 1: 8, 5: 4}[key & 7] if key & 7 != 2 else number()
        if key & 7 == 0:
            number()
        if key >> 3 == wanted:
            found = message[at : at + size]
        at += size
    return found


def charsmap() -> bytes:
    """Return the compiled table of RULES."""
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        for key, value in RULES.items():
            rules.write("\t".join(" ".join(f"{ord(c):X}" for c in text) for text in (key, value)) + "\n")
        rules.flush()
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["abc abd " * 9, "the cat"]),
            model_writer=model,
            vocab_size=16,
            normalization_rule_tsv=rules.name,
            hard_vocab_limit=False,
        )
    return field(field(model.getvalue(), 3), 2)


def main() -> None:
    """Make the file again."""
    table = charsmap()
    vocabulary = json.loads((HERE / "kinds.json").read_text())["t5"]["vocabulary"]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        program = Path(sys.argv[2]) if len(sys.argv) > 2 else compiled(Path(sys.argv[1]), folder)
        cases = []
        for merges in (False, True):
            flags = {"remove_extra_whitespaces": merges, "add_space_prefix": True}
            path = write(folder / "t5.gguf", vocabulary | flags | {"precompiled_charsmap": table})
            lines = [line.split() for line in ids(program, path, list(TEXTS))]
            cases.append({"flags": flags, "ids": [list(map(int, line)) for line in lines]})
    document = {"table": table.hex(), "texts": TEXTS, "cases": cases}
    (HERE / "charsmap.json").write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
