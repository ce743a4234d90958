"""Make `vocabularies/`: small vocabularies and the ids that llama.cpp's own tokenizers give for nasty texts.

Run by hand, never in CI, with g++, tokenizers 0.23, gguf 0.19 and a source tree of llama.cpp (b11434 made the files):

    python tests/golden/make_vocabularies.py .../llama.cpp

`llama_tokenize.cpp` is compiled with llama.cpp's loader and vocabularies. The byte-level vocabulary is trained without any cut
into words, so that its merges cross words, digits and spaces, and every cut of a pre-tokenizer shows in the ids. `pre.json`
has, for each name of `tokenizer.ggml.pre`, the number of its line of ids; names with the same ids share a line. `kinds.json` has
a vocabulary of each other kind, and the ids for the same texts under several flags. The training of word pieces is not the same
every time: then the numbers in the page of tokenizers change too.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

HERE = Path(__file__).parent / "vocabularies"
PARTS = (
    *(f"src/{name}.cpp" for name in ("llama-vocab", "unicode", "unicode-data", "llama-model-loader", "llama-mmap")),
    *(f"src/{name}.cpp" for name in ("llama-arch", "llama-hparams", "llama-impl")),
    *(f"ggml/src/{name}.cpp" for name in ("gguf", "ggml", "ggml-backend", "ggml-threading", "ggml-backend-reg")),
    *(f"ggml/src/{name}.cpp" for name in ("ggml-backend-dl", "ggml-backend-meta")),
    *(f"ggml/src/{name}.c" for name in ("ggml", "ggml-alloc", "ggml-quants")),
)
OWN_TEXTS = (
    "don't DON'T can'T we've WE'VE I'm they'll y'all O'Neill it's'",
    "1 12 123 1234 12345 123456 1234567 12345678 123456789",
    "abc123def4567ghi 1a2b3c 3.14159 1,234,567.89 0x1F4A9 1e-10 ½ ² Ⅳ ٣٤٥",
    "camelCase PascalCase HTTPServer XMLHttpRequest snake_case_name kebab-case iPhone",
    "a  b   c    d\te\t\tf \t g",
    "x\n\ny\r\nz\r\r\n\n \n  \n end  \n",
    "        if x == 1:\n            return [y**2 for y in range(10)]  # done!!\n",
    "漢字かなカナ交じり文。한국어 텍스트, 中文\uff0c标点\uff01全角\uff21\uff22\uff23\uff11\uff12\uff13",
    "नमस्ते दुनिया สวัสดีชาวโลก မြန်မာ ភាសាខ្មែរ ลาว ພາສາ",
    "e\u0301te\u0301 n\u0303 a\u0308\u0304 Z\u0351\u036b\u0343 \u0301alone",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇫🇷 ☃️ ™©®",
    "Привет, МИР! Ελληνικά ΑΒΓ עברית עִבְרִית العربية مَرْحَبًا",
    "$100 €5 £3 50% #tag @user a/b/c //x \\n <b>&amp;</b> ~`^|_=+<>",
    "\u00a0nbsp\u2003em\u3000ideographic\u2028line\u200bzero\ufeffbom\u00adsoft",
    "<sentinel:12> IMGIMGABCZ IMGIMGAZ <s>",
    "/path/to/file.txt? [](){} ''' \"\"\" ... --- !!!???\n/n\n//\n",
    "ICH BIN groß. straße İstanbul ǅungla ŒUVRE œuvre",
    "a" * 40 + " " * 40 + "!" * 20,
    "tab\tvertical\x0bform\x0cbell\x07nul? end",
    "。、\uff01\uff1f \uff0ca。b \u06d4 ، । |x| (y) ...z",
)


def texts(source: Path) -> list[str]:
    """Return llama.cpp's own test texts, then ours."""
    found = list(OWN_TEXTS)
    for name in ("llama-bpe", "qwen35"):
        given = (source / f"models/ggml-vocab-{name}.gguf.inp").read_text()
        found += given.split("\n__ggml_vocab_test__\n")
    return [text for text in dict.fromkeys(found) if text]


def compiled(source: Path, folder: Path) -> Path:
    """Return the program."""
    (folder / "ggml-version.h").write_text('#define GGML_VERSION "x"\n#define GGML_COMMIT "x"\n')
    (folder / "ggml-cpu").mkdir()
    includes = [f"-I{folder}", *(f"-I{source / part}" for part in ("include", "src", "ggml/include", "ggml/src"))]
    objects = []
    for part in (*map(source.__truediv__, PARTS), HERE / "llama_tokenize.cpp"):
        objects.append(str(folder / f"{part.name}.o"))
        compiler = ["g++", "-std=c++17"] if part.suffix == ".cpp" else ["gcc", "-std=c11"]
        flags = ['-DGGML_VERSION="x"', '-DGGML_COMMIT="x"', "-D_GNU_SOURCE", "-w", "-O1", "-c", part, "-o", objects[-1]]
        subprocess.run([*compiler, *includes, *flags], check=True)
    subprocess.run(["g++", *objects, "-o", folder / "tokenize", "-lpthread", "-ldl", "-lm"], check=True)
    return folder / "tokenize"


def ids(program: Path, vocabulary: Path, given: list[str], *overrides: str) -> list[str]:
    """Return the line of ids of each text, as ordinary text; nothing where llama.cpp refuses the vocabulary or ends."""
    data = b"".join(text.encode() + b"\0" for text in given)
    made = subprocess.run([program, vocabulary, *overrides], input=data, capture_output=True, check=False)
    if made.returncode:
        return []
    return [line.split("|")[0].strip() for line in made.stdout.decode().splitlines()[1:]]


def byte_level(given: list[str]) -> dict[str, object]:
    """Return a vocabulary of kind "gpt2" whose merges were learned across everything."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, max_token_length=10, show_progress=False)
    tokenizer.train_from_iterator(given, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(merge) for merge in model["merges"]]
    return {"model": "gpt2", "tokens": tokens, "token_type": [1] * len(tokens), "merges": merges}


def over_characters(given: list[str]) -> dict[str, object]:
    """Return a vocabulary of kind "gemma4", learned across everything but newlines."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), "isolated")
    trainer = trainers.BpeTrainer(vocab_size=900, limit_alphabet=200, max_token_length=10, show_progress=False)
    tokenizer.train_from_iterator(given, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    learned = sorted(model["vocab"], key=model["vocab"].get)
    tokens = [*HEAD, *learned]
    types = [3, 3, 2, *[6] * 256, *[1] * len(learned)]
    merges = [" ".join(merge) for merge in model["merges"]]
    return {"model": "gemma4", "tokens": tokens, "token_type": types, "merges": merges}


HEAD = ("<pad>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)))


def with_scores(given: list[str]) -> dict[str, object]:
    """Return the same tokens as a vocabulary of kind "llama", whose scores are the order of the merges."""
    made = over_characters(given)
    rank = {merge.replace(" ", ""): float(-i) for i, merge in enumerate(made.pop("merges"))}
    return made | {
        "model": "llama",
        "scores": [rank.get(token, -9999.0) for token in made["tokens"]],
        "eos_token_id": 1,
    }


def unigram(given: list[str]) -> dict[str, object]:
    """Return a vocabulary of kind "t5"."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    trainer = trainers.UnigramTrainer(vocab_size=500, unk_token="<unk>", max_piece_length=8, show_progress=False)
    tokenizer.train_from_iterator(given, trainer)
    learned = [pair for pair in json.loads(tokenizer.to_str())["model"]["vocab"] if pair[0] not in HEAD]
    tokens = ["<pad>", "</s>", "<unk>", *(token for token, _ in learned)]
    scores = [0.0, 0.0, 0.0, *(float(numpy.float32(score)) for _, score in learned)]
    types = [3, 3, 2, *[1] * len(learned)]
    unique = {token: i for i, token in reversed(list(enumerate(tokens)))}
    keep = sorted(unique.values())
    columns = {"tokens": tokens, "scores": scores, "token_type": types}
    return {"model": "t5"} | {name: [column[i] for i in keep] for name, column in columns.items()}


def word_piece(given: list[str]) -> dict[str, object]:
    """Return a vocabulary of kind "bert", spelled as the converter spells it."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=600, limit_alphabet=200, show_progress=False)
    tokenizer.train_from_iterator(given, trainer)
    vocabulary = tokenizer.get_vocab()
    learned = [
        token[2:] if token.startswith("##") else "\u2581" + token for token in sorted(vocabulary, key=vocabulary.get)
    ]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return {
        "model": "bert",
        "tokens": special + learned,
        "token_type": [3, 3, 3, 3, 3, *[1] * len(learned)],
        "unknown_token_id": 1,
        "bos_token_id": 2,
        "seperator_token_id": 3,
    }


KINDS = {"gemma4": over_characters, "llama": with_scores, "t5": unigram, "bert": word_piece}
OVER_CHARACTERS = ("gemma4", "sarvam-moe", "granite-embed-multi-311m", "mmbert")
FLAGS = {
    "gemma4": ({}, *({"pre": name, "model": "gpt2"} for name in OVER_CHARACTERS)),
    "llama": ({}, {"add_space_prefix": False}),
    "t5": (
        {},
        {"remove_extra_whitespaces": True},
        {"add_space_prefix": False},
        {"add_space_prefix": False, "remove_extra_whitespaces": True},
    ),
    "bert": ({}, {"normalizer.lowercase": False}, {"normalizer.strip_accents": False}),
}


def make_kinds(source: Path, program: Path, folder: Path) -> dict[str, object]:
    """Return the contents of `kinds.json`."""
    given = texts(source)
    made = {}
    for kind, make in KINDS.items():
        vocabulary = make(given)
        cases = []
        for flags in FLAGS[kind]:
            path = write(folder / "kind.gguf", vocabulary | flags)
            cases.append({"flags": flags, "ids": ids(program, path, given)})
        made[kind] = {"vocabulary": vocabulary, "cases": cases}
    return made


def write(path: Path, values: dict[str, object]) -> Path:
    """Write the vocabulary as a GGUF file."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in values.items():
        name = f"tokenizer.ggml.{key}"
        if isinstance(value, list | bytes):
            writer.add_array(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_string(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def pre_names(source: Path) -> list[str]:
    """Return every name that llama.cpp compares `tokenizer.ggml.pre` with."""
    code = (source / "src/llama-vocab.cpp").read_text()
    return sorted(set(re.findall(r'tokenizer_pre == "([^"]+)"', code)))


def make_pre(source: Path, program: Path, folder: Path) -> dict[str, object]:
    """Return the contents of `pre.json`."""
    given = texts(source)
    vocabulary = byte_level(given)
    path = write(folder / "pre.gguf", vocabulary | {"bos_token_id": 0, "eos_token_id": 1})
    lines: list[list[str]] = []
    names = {}
    for name in pre_names(source):
        line = ids(program, path, given, f"tokenizer.ggml.pre={name}")
        if line not in lines:
            lines.append(line)
        names[name] = lines.index(line)
    return {"vocabulary": vocabulary, "texts": given, "names": names, "ids": lines}


def in_lines(document: object, depth: int = 3) -> str:
    """Return the document as JSON, with a line for each member of the outer objects and lists."""
    if depth and isinstance(document, dict):
        members = [f"{json.dumps(key)}: {in_lines(value, depth - 1)}" for key, value in document.items()]
        return "{\n" + ",\n".join(members) + "\n}"
    if depth and isinstance(document, list) and document and not isinstance(document[0], str):
        return "[\n" + ",\n".join(in_lines(value, depth - 1) for value in document) + "\n]"
    return json.dumps(document, ensure_ascii=False)


def main() -> None:
    """Make all files again."""
    source = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        program = Path(sys.argv[2]) if len(sys.argv) > 2 else compiled(source, folder)
        for name, make in (("pre", make_pre), ("kinds", make_kinds)):
            document = make(source, program, folder)
            (HERE / f"{name}.json").write_text(in_lines(document) + "\n")


if __name__ == "__main__":
    main()
