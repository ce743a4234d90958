"""Make `minilm.json`: what sentence-transformers gives for twenty texts by the encoder that `tlserve pull minilm` brings.

Run by hand, never in CI, in an environment of its own with torch 2.13.0, transformers 5.24.0 and sentence-transformers 6.2.0:

    python tests/golden/make_minilm.py PATH_OF_THE_PULLED_MODEL

Each text is encoded alone, in float32 on the CPU. `ids` are what the model read, [CLS] and [SEP] among them; `vector` is
rounded to seven decimals.
"""

import json
import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer

HERE = Path(__file__).parent
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
TEXTS = (
    "The cat sat on the mat.",
    "A feline was resting on a rug.",
    "Stock markets fell sharply on Tuesday after the central bank raised interest rates.",
    "Über die Straße gehen größere Möglichkeiten; das weiß jeder.",
    "Où est la bibliothèque ? Ça dépend, señor.",
    "Привет, мир! Как дела?",
    "你好，世界。今天天气很好。",  # noqa: RUF001 - as people write it
    "こんにちは、世界。カタカナも書きます。",
    "مرحبا بالعالم، كيف حالك اليوم؟",
    "नमस्ते दुनिया 안녕하세요 สวัสดีชาวโลก",
    "I love this! 🎉🙂👩‍👩‍👧 10/10 ❤️",
    "def main(args):\n\treturn [int(x) for x in args if x.isdigit()]  # 0x7F",
    "https://example.org/a/b?c=d&e=%20f#g and mail@example.org",
    "e\u0301 and \u00e9, \ufb01ne \u2163 \u00bd, zero\u200bwidth\u00a0space\u0007bell",
    "In 1984 there were 12345 of them, 3.14159 each, at 100% (or so they say).",
    "pneumonoultramicroscopicsilicovolcanoconiosis " + "a" * 120 + " Donaudampfschifffahrtsgesellschaft",
    ".",
    "   \n\t ",
    " ".join(f"Sentence number {word} says that the weather in the north is colder than before." for word in NUMBERS),
    " ".join(NUMBERS[i * i % 10] for i in range(254)),
)


def main() -> None:
    """Write the file."""
    model = SentenceTransformer(sys.argv[1], device="cpu")
    cases = []
    for text in TEXTS:
        ids = model.tokenizer(text)["input_ids"]
        assert len(ids) <= model.max_seq_length
        vector = model.encode([text])[0]
        cases.append({"text": text, "ids": list(map(int, ids)), "vector": [round(float(value), 7) for value in vector]})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
    (HERE / "minilm.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
