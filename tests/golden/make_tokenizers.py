"""Make `tokenizers/`: small tokenizers of each family, as their tokenizer.json, and the ids that the `tokenizers` package gives.

Run by hand, never in CI, in an environment with tokenizers 0.23:

    python tests/golden/make_tokenizers.py

Each is trained on a few sentences; its normaliser, its cuts into words, its decoder and its frame are those of the family's
released files. `ids.json` holds for every family and text the ids without and with the frame (BOS and the like).
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent / "tokenizers"
VOCABULARY = 316
SENTENCES = [
    "The quick brown fox jumps over the lazy dog; it's what they'd do, isn't it?",
    "def main(arguments):\n    return [int(x) for x in arguments if x.isdigit()]\n",
    "In 1984 there were 12345 of them, 3.14159 each, at 100% (or so they say).",
    "Über die Straße gehen größere Möglichkeiten; naïve cafés, señor, où ça?",
    "Привет, мир! 你好,世界。 こんにちは、世界。",
    '<tool> {"name": "search", "arguments": {"query": "weather"}} </tool>',
    "the theatre there, then the other; they think that this thing is the best thing that there is.",
]
TEXTS = [
    "Hello, world!",
    "  two spaces  before and after  ",
    "tabs\tand\nnew\r\nlines\n\n\n  end",
    "It's 2024, and they'd say 1234567 isn't 12,345.678",
    "ÜBER naïve café ﬁne Ⅳ ½",
    "e\u0301 and \u00e9 are the same letter",
    "漢字 かな 한국어 Привет",
    "👩‍👩‍👧 and 🎉🎉",
    "\u200b\ufeffzero width\u00a0no-break",
    "x = {'a': [1, 2]};  // comment",
    "a<|im_start|>user\nhi<|im_end|>b",
    "<s>[INST] hi [/INST]</s>",
    "<|begin_of_text|>hi<|eot_id|> there",
    "[INST]hi[/INST]there [INST] you",
    " leading",
    "▁already▁marked",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "\n",
    " ",
]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def special(*contents: str) -> list[AddedToken]:
    """Return control tokens."""
    return [AddedToken(content, special=True, normalized=False) for content in contents]


def byte_level(names: tuple[str, ...], cut, *, whole_words: bool = False, normalizer=None) -> Tokenizer:
    """Return a byte-level BPE tokenizer as GPT-2's heirs have it."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole_words))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=special(*names)
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def split(pattern: str):
    """Return a cut by a pattern, then bytes as characters."""
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def smollm() -> Tokenizer:
    """SmolLM2: single digits, then GPT-2's cut; no frame."""
    cut = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return byte_level(("<|endoftext|>", "<|im_start|>", "<|im_end|>"), cut)


def llama3() -> Tokenizer:
    """Llama 3: three digits at most, whole words first, framed by BOS."""
    tokenizer = byte_level(("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"), split(LLAMA3), whole_words=True)
    frame = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        special_tokens=[("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))],
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), frame])
    return tokenizer


def qwen2() -> Tokenizer:
    """Qwen 2 and 3: NFC, single digits."""
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    return byte_level(names, split(QWEN2), normalizer=normalizers.NFC())


def sentencepiece(normalizer, cut) -> Tokenizer:
    """Return a BPE tokenizer over characters, with bytes for what it cannot spell."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.train_from_iterator(
        SENTENCES[:1] + SENTENCES[-1:], trainers.BpeTrainer(vocab_size=150, show_progress=False)
    )
    document = json.loads(trained.to_str())["model"]
    head = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = [*head, *sorted(document["vocab"], key=document["vocab"].get)]
    tokenizer.model = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[tuple(merge) for merge in document["merges"]],
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, cut
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>", "[INST]", "[/INST]"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def llama2() -> Tokenizer:
    """Llama 2 and Mistral 7B 0.1: spaces as U+2581 by the normaliser, one before every stretch of text."""
    return sentencepiece(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None)


def mistral() -> Tokenizer:
    """Mistral 7B 0.3: spaces as U+2581 by the cut, one before the beginning of the text alone."""
    return sentencepiece(None, pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False))


def main() -> None:
    """Make all files again."""
    HERE.mkdir(exist_ok=True)
    ids = {}
    for make in (smollm, llama3, qwen2, llama2, mistral):
        name, tokenizer = make.__name__, make()
        (HERE / f"{name}.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False) + "\n")
        ids[name] = [
            {
                "text": text,
                "ids": tokenizer.encode(text, add_special_tokens=False).ids,
                "framed": tokenizer.encode(text).ids,
                "decoded": tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids),
            }
            for text in TEXTS
        ]
    lines = [f'"{name}": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]" for name, cases in ids.items()]
    (HERE / "ids.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
