"""The parsers of files: models, their tokenizers, configurations and templates; settings and keys.

A file that is accepted is used: rows of its tensors are read, its tokenizer encodes, its template renders.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import NUMBERS, changed_bytes, changed_document, changed_text, other_value, written
from tests.fuzz.parsers.target import Target
from tests.kit.model.golden_kin import KIN
from tests.kit.model.safetensors_bytes import entry, safetensors_bytes
from tests.kit.model.tiny_tokenizers import gpt2_metadata, llama_metadata, prefixed
from tests.kit.source_tree import CHECKOUT
from tlserve.access.keys import parse_keys
from tlserve.chat.templates.template import Template
from tlserve.config.declared import declared_settings
from tlserve.config.load import load_settings
from tlserve.config.toml_file import read_toml
from tlserve.errors import ClientError, ModelRefused, ServerFault, SettingsError
from tlserve.model.gguf.facts import gguf_decoder
from tlserve.model.gguf.header import read_header as read_gguf_header
from tlserve.model.gguf.tensors import GgufFile
from tlserve.model.hugging_face.facts import hf_decoder
from tlserve.model.hugging_face.safetensors_file import SafetensorsFile
from tlserve.model.hugging_face.safetensors_file import read_header as read_safetensors_header
from tlserve.model.sidecar_files import read_sidecar
from tlserve.text.tokenizer import HUGGINGFACE, build_tokenizer

TEXT = "aaaa hello 123 \u00e9 <|im_start|>\ud83d the theatre\n\0"


@functools.cache
def folder() -> Path:
    """Return a folder of this process, in memory where the machine has that."""
    memory = Path("/dev/shm")
    made = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, ignore_cleanup_errors=True)
    _FOLDERS.append(made)
    return Path(made.name)


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


# --- GGUF ----------------------------------------------------------------------------------------------------------------

_LLAMA = {
    "general.architecture": "llama",
    "general.alignment": 32,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.block_count": 1,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 8,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.scores": [0.0, 1.0, -1.0],
    "tokenizer.ggml.token_type": [1, 1, 3],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.add_bos_token": True,
}


def _string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


def _number(value: Any) -> tuple[int, str]:
    """Return the type for a number, and its code; large integers have 64 bits."""
    if isinstance(value, bool):
        return 7, "B"
    if isinstance(value, float):
        return 6, "f"
    return (4, "I") if 0 <= value < 1 << 32 else (10, "Q") if value >= 0 else (11, "q")


def gguf_value(value: Any) -> bytes:
    """Return a value with its type; what no file can have becomes an empty array."""
    try:
        if isinstance(value, str):
            return struct.pack("<I", 8) + _string(value)
        if isinstance(value, (int, float)):
            kind, code = _number(value)
            return struct.pack(f"<I{code}", kind, value)
        if isinstance(value, bytes):
            return struct.pack("<IIQ", 9, 0, len(value)) + value
        if value and isinstance(value, list):
            kind, code = (8, "") if isinstance(value[0], str) else _number(value[0])
            parts = [_string(part) if kind == 8 else struct.pack(f"<{code}", part) for part in value]
            return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(parts)
    except (struct.error, OverflowError, TypeError, AttributeError):
        pass
    return struct.pack("<IIQ", 9, 4, 0)


def gguf_bytes(
    metadata: Mapping[str, Any], sizes: Sequence[Sequence[int]], kind: int = 0, version: int = 3, first: int = 0
) -> bytes:
    """Return the header of a file, and a few bytes behind it."""
    keys = b"".join(_string(name) + gguf_value(value) for name, value in metadata.items())
    tensors = b"".join(
        _string(f"blk.{first + i}.weight") + struct.pack(f"<I{len(size)}QIQ", len(size), *size, kind, 32 * i)
        for i, size in enumerate(sizes)
    )
    return b"GGUF" + struct.pack("<IQQ", version, len(sizes), len(metadata)) + keys + tensors + bytes(64)


def gguf_file(rng: random.Random) -> bytes:
    """Return a small file with one or two odd values and sizes; half of them are also damaged."""
    metadata: dict[str, Any] = dict(_LLAMA)
    for name in rng.choices(list(metadata), k=rng.choice((0, 1, 2))):
        metadata[name] = rng.choice(_ODD) if rng.random() < 0.5 else other_value(rng, metadata[name], _ODD)
    sizes = [[rng.choice((1, 8, 32, 64, 0, 1 << 40)) for _ in range(rng.choice((1, 2, 4)))] for _ in range(3)]
    data = gguf_bytes(metadata, sizes, rng.choice((0, 1, 2, 8, 12, 99)), 2 if rng.random() < 0.1 else 3)
    return changed_bytes(rng, data) if rng.random() < 0.5 else data


_ODD: Sequence[Any] = (
    0,
    1,
    7,
    1 << 31,
    -1,
    1 << 63,
    "",
    "x",
    "qwen2",
    0.0,
    float("nan"),
    float("inf"),
    [],
    ["", "a"],
    [1.0] * 9,
    [1, 2],
    True,
)


def use_gguf(data: bytes) -> None:
    header = read_gguf_header(data)
    gguf_decoder(header.metadata, 3, 0, header.tensors.keys())
    build_tokenizer(header.metadata)


def gguf_shards(rng: random.Random) -> tuple[bytes, bytes]:
    """Return the two files of a split model; one or two of their numbers are odd, and half of the files are also damaged."""
    keys: list[dict[str, Any]] = [{"split.no": i, "split.count": 2, "split.tensors.count": 2} for i in (0, 1)]
    for _ in range(rng.choice((0, 1, 2))):
        rng.choice(keys)[rng.choice(list(keys[0]))] = rng.choice((0, 1, 2, 3, 1 << 16, 1 << 40, -1, "2", True, [2]))
    files = [gguf_bytes({**_LLAMA, **keys[i]}, [[8, 1]] * rng.choice((1, 1, 1, 2)), first=i) for i in (0, 1)]
    first, second = (changed_bytes(rng, data) if rng.random() < 0.25 else data for data in files)
    return first, second


def use_gguf_shards(given: tuple[bytes, bytes]) -> None:
    paths = [folder() / f"x-0000{number}-of-00002.gguf" for number in (1, 2)]
    for path, data in zip(paths, given, strict=True):
        path.write_bytes(data)
    with GgufFile(paths[0], hashed=True) as file:
        for name, shape in file.shapes().items():
            file.rows(name, 0, shape[0])
        file.digest()


def gguf_tokenizer(rng: random.Random) -> bytes:
    """Return a file with a tokenizer in which one or two values are odd."""
    metadata = dict(rng.choice(_GGUF_TOKENIZERS))
    for name in rng.choices(list(metadata), k=rng.choice((1, 1, 2))):
        value = metadata[name]
        if isinstance(value, list) and value and rng.random() < 0.7:
            index = rng.randrange(len(value))
            metadata[name] = [*value[:index], other_value(rng, value[index], _WORDS), *value[index + 1 :]]
        else:
            metadata[name] = other_value(rng, value, _WORDS)
    return gguf_bytes(metadata, [])


def use_gguf_tokenizer(data: bytes) -> None:
    use_tokenizer(read_gguf_header(data).metadata)


def _recorded_tokenizers() -> Sequence[Mapping[str, Any]]:
    """Return a vocabulary of each other kind, and one whose normaliser has all its parts."""
    kinds = json.loads((KIN.parent / "vocabularies/kinds.json").read_text())
    made = [prefixed(kinds[kind]["vocabulary"]) for kind in ("gemma4", "bert", "t5")]
    flags = {
        "remove_extra_whitespaces": True,
        "add_space_prefix": True,
        "precompiled_charsmap": [4, 0, 0, 0, 0, 0, 0, 0, 97, 0],
    }
    return (*made, made[-1] | prefixed(flags))


_GGUF_TOKENIZERS = (
    gpt2_metadata(),
    llama_metadata({"a": 1.0, "b": 0.5, "ab": 2.0}),
    *_recorded_tokenizers(),
)
_WORDS: Sequence[Any] = (
    "",
    "a",
    "<|im_end|>",
    "a b",
    "a  b",
    "\u2581",
    "<0x41>",
    0,
    -1,
    5,
    1 << 40,
    True,
    None,
    [],
    ["a"],
)


def use_tokenizer(metadata: Mapping[str, object]) -> None:
    """Build it; what it accepts must encode and decode, or fail as a request does."""
    tokenizer = build_tokenizer(metadata)
    with contextlib.suppress(ClientError, ServerFault):
        tokenizer.encode("aaaa hello 123 \u00e9 <|im_start|>")
    for token in range(min(300, tokenizer.vocabulary_size)):
        tokenizer.token_bytes(token)


# --- Hugging Face --------------------------------------------------------------------------------------------------------


def safetensors(rng: random.Random) -> bytes:
    header = {
        "a": entry(),
        "b": entry("F16", (2, 3), (8, 20)),
        "c": entry("BF16", (1, 2), (20, 24)),
        "__metadata__": {"f": "x"},
    }
    kind = rng.random()
    if kind < 0.5:
        return safetensors_bytes(written(rng, changed_document(rng, header, _ENTRIES)), bytes(24))
    return changed_bytes(rng, safetensors_bytes(header, bytes(24)))


_ENTRIES = (
    entry("F32", [2], [0, 8]),
    [0, 8],
    [8, 0],
    [-1, 8],
    [0, 1 << 62],
    "F32",
    "F8_E4M3",
    "Q4",
    [1 << 40, 1 << 40],
    0,
    8,
    None,
)


def use_safetensors(data: bytes) -> None:
    read_safetensors_header(data, "x")
    path = folder() / "x.safetensors"
    path.write_bytes(data)
    with SafetensorsFile(path) as file:
        for name, info in file.tensors.items():
            with contextlib.suppress(ModelRefused):
                file.rows(name, 0, 1 if info.shape else 0)


_CONFIGS: Sequence[dict[str, Any]] = tuple(case["config"] for case in json.loads((KIN / "kin.json").read_text()))
_CONFIG_WORDS: Sequence[Any] = (
    *("llama", "qwen3", "mistral", "bfloat16", "silu", "gelu", "yarn", "llama3", "linear", "dynamic", "default"),
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 1, "original_max_position_embeddings": 0},
    {"rope_type": "dynamic", "factor": 0.0},
    *(["full_attention", "sliding_attention"], [], None, 0, 1, 2, 64, True, 1e-5, "x"),
)


def hf_config(rng: random.Random) -> bytes:
    return written(rng, changed_document(rng, rng.choice(_CONFIGS), _CONFIG_WORDS))


def use_hf_config(data: bytes) -> None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return  # `tlserve.model.sidecar_files` refuses it, which has its own target
    if isinstance(document, dict):
        hf_decoder(document)


_SIDECAR = {
    "generation_config.json": {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "eos_token_id": [2, 5],
        "chat_template": "{{ x }}",
    },
    "tokenizer_config.json": {
        "chat_template": [{"name": "default", "template": "{{ messages }}"}],
        "eos_token": "</s>",
    },
}


def sidecar(rng: random.Random) -> tuple[str, bytes]:
    name = rng.choice(list(_SIDECAR))
    return name, written(rng, changed_document(rng, _SIDECAR[name], _CONFIG_WORDS))


def use_sidecar(given: tuple[str, bytes]) -> None:
    for name in _SIDECAR:
        (folder() / name).write_bytes(given[1] if name == given[0] else b"{}")
    read_sidecar(folder(), 8)


@functools.cache
def _tokenizers() -> Sequence[dict[str, Any]]:
    """Return the tokenizers of the golden files."""
    return tuple(json.loads(path.read_text()) for path in sorted((KIN.parent / "tokenizers").glob("[!i]*.json")))


_TOKENIZER_WORDS: Sequence[Any] = (
    {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"},
    {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False},
    {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend", "prepend": "x"}]},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
    {
        "id": 3,
        "content": "<s>",
        "special": True,
        "single_word": True,
        "lstrip": True,
        "rstrip": True,
        "normalized": True,
    },
    *(
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
        "BPE",
        "WordPiece",
        "Unigram",
        None,
        [],
        0,
    ),
)


def hf_tokenizer(rng: random.Random) -> dict[str, Any]:
    document = changed_document(rng, rng.choice(_tokenizers()), _TOKENIZER_WORDS)
    if rng.random() < 0.5:  # most of a document is its vocabulary: change one of the other parts too
        part = rng.choice(("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens"))
        if isinstance(document, dict):
            document = {**document, part: changed_document(rng, document.get(part), _TOKENIZER_WORDS)}
    return {HUGGINGFACE: written(rng, document).decode("utf-8", "replace"), "tokenizer.ggml.bos_token_id": 1}


# --- templates -----------------------------------------------------------------------------------------------------------

_TEMPLATES = (
    *(path.read_text() for path in sorted((CHECKOUT / "tests/chat/templates").glob("*.jinja"))),
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}\n{% endfor %}{{ bos_token }}",
    "{% set ns = namespace(x=1) %}{% for i in range(3) %}{% set ns.x = ns.x * 2 %}{{ i ~ ns.x }}{% endfor %}",
    "{% macro m(a, b=2) %}{{ a | tojson(indent=b) }}{% endmacro %}{{ m(messages) }}{{ m(messages[0], 1) }}",
    "{{ messages[::-1] | map(attribute='content') | join(', ') }}{{ '%s' | format(1) }}{{ strftime_now('%Y') }}",
)
_JINJA = (
    *(
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "{%- ",
        " -%}",
        "|",
        "~",
        "(",
        ")",
        "[",
        "]",
        "[::-1]",
        "[0]",
        ".x",
        " ",
        "\n",
        "'",
    ),
    *(
        " if x ",
        " else ",
        " for i in range(9) ",
        " is defined",
        " in ",
        " not ",
        " and ",
        "**9",
        " * 10 ** 9",
        "% 3",
        "// 0",
        "1/0",
    ),
    *(
        "{% for m in messages %}",
        "{% endfor %}",
        "{% if true %}",
        "{% endif %}",
        "{% set x = 1 %}",
        "{% macro f() %}",
        "{% endmacro %}",
    ),
    *(
        "| tojson",
        "| trim",
        "| length",
        "| join",
        "| replace('a', 'aa')",
        "| list",
        "| sort",
        "| batch(2)",
        "| int",
        "| indent(9)",
    ),
    *(
        "range(10**9)",
        "namespace(a=1)",
        "cycler('a')",
        "joiner()",
        "lipsum()",
        "dict(a=1)",
        "raise_exception('no')",
        "caller()",
    ),
    *(
        ".format(1)",
        ".__class__",
        ".join('ab')",
        ".split()",
        ".center(10**8)",
        ".ljust(9)",
        ".encode()",
        ".items()",
        "messages",
        "x",
    ),
    *(
        "'%99999999d' % 1",
        "'{:>999999999}'.format(1)",
        "{% break %}",
        "{% generation %}",
        "{% endgeneration %}",
        "self",
        "loop",
    ),
)
_VARIABLES = {
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "a" * 60},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"a": [1]}}}],
        },
        {"role": "tool", "content": "5", "tool_call_id": "a"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "add_generation_prompt": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
}


def template(rng: random.Random) -> str:
    source = rng.choice(_TEMPLATES)
    if rng.random() < 0.5 and len(source) > 400:  # a part of it: changes then meet each other
        start = rng.randrange(len(source) - 200)
        source = source[start : start + rng.randrange(40, 400)]
    return changed_text(rng, source, _JINJA)


def use_template(source: str) -> None:
    Template.parse(source).render(_VARIABLES)


# --- settings and keys ---------------------------------------------------------------------------------------------------

_RUNTIME = (CHECKOUT / "runtime.toml").read_text()
_TOML_WORDS = (
    *(
        "=",
        "[",
        "]",
        "[[",
        "]]",
        '"',
        "'",
        '"""',
        "#",
        "\n",
        ".",
        ",",
        "{",
        "}",
        "true",
        "1_0",
        "0x",
        "1e400",
        "nan",
        "inf",
        "-",
        "9" * 30,
    ),
    *(
        "[engine]\n",
        "[[models]]\n",
        "[http]\n",
        "model_dir = 'succ'\n",
        "threads = 2\n",
        "port = 99999\n",
        "[models]\n",
        "\\u0000",
    ),
    *(
        "1979-05-27T07:32:00Z",
        "1979-05-27",
        "07:32:00",
        "\\",
        "\t",
        "\ufeff",
        "a.b.c = 1\n",
        "sampling = {}\n",
        "key = []\n",
    ),
)
_KEYS = (
    '[[keys]]\nname = "alice"\nkey = "a-long-key-with-40-characters-0123456789"\nexpires = 2030-01-31T12:00:00Z\n'
    f'[[keys]]\nname = "bob"\nsha256 = "{"ab" * 32}"\ndisabled = true\nexpires = 2031-01-31\n'
)
_KEY_WORDS = (
    *(
        *_TOML_WORDS,
        "name",
        "key",
        "sha256",
        "expires",
        "disabled",
        "[[keys]]\n",
        "0001-01-01",
        "9999-12-31",
        "requests_per_minute = 0\n",
    ),
    *(
        "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00+23:59",
        "1979-05-27T07:32:00",
        "tokens_per_minute = 1\n",
        "-0",
        "0",
    ),
)


@functools.cache
def _settings_documents() -> Sequence[str]:
    chunks = [f"[{part}" for part in _RUNTIME.split("\n[")[1:]]
    return (_RUNTIME, *chunks)


def runtime_toml(rng: random.Random) -> bytes:
    text = rng.choice(_settings_documents())
    uncommented = text.replace("\n# ", "\n") if rng.random() < 0.5 else text
    return changed_text(rng, uncommented, _TOML_WORDS).encode("utf-8", "surrogatepass")


def use_runtime_toml(data: bytes) -> None:
    path = folder() / "runtime.toml"
    path.write_bytes(data)
    load_settings(path, {}, ())


def environment(rng: random.Random) -> tuple[str, str]:
    """Return a setting and its text; one in eight names is damaged."""
    table = rng.choice(list(declared_settings()))
    name = f"{table}.{rng.choice(list(declared_settings()[table]))}"
    numbers = [str(number) for number in NUMBERS if not isinstance(number, int) or abs(number) < 10**40]
    value = changed_text(
        rng, rng.choice((*numbers, "true", "none", "auto", "f16", "[]", '["a"]', "127.0.0.1:8000", "succ", "1.5"))
    )
    return changed_text(rng, name) if rng.random() < 0.125 else name, value


def use_environment(given: tuple[str, str]) -> None:
    """Give it as a variable and as an option: the same is refused."""
    name, value = given
    variable = f"TL_{name.replace('.', '__').upper()}"
    with contextlib.suppress(SettingsError):
        load_settings(None, {variable: value}, ())
    load_settings(None, {}, (given,))


def keys_file(rng: random.Random) -> bytes:
    return changed_text(rng, _KEYS, _KEY_WORDS).encode("utf-8", "surrogatepass")


def use_keys_file(data: bytes) -> None:
    path = folder() / "keys.toml"
    path.write_bytes(data)
    parse_keys(read_toml(path))


TARGETS = (
    Target(name="gguf", make=gguf_file, use=use_gguf, refusals=(ModelRefused,), share=300),
    Target(name="gguf-shards", make=gguf_shards, use=use_gguf_shards, refusals=(ModelRefused,), share=100),
    Target(name="gguf-tokenizer", make=gguf_tokenizer, use=use_gguf_tokenizer, refusals=(ModelRefused,), share=30),
    Target(name="safetensors", make=safetensors, use=use_safetensors, refusals=(ModelRefused,), share=300),
    Target(name="hf-config", make=hf_config, use=use_hf_config, refusals=(ModelRefused,), share=300),
    Target(name="sidecar", make=sidecar, use=use_sidecar, refusals=(ModelRefused,), share=100),
    Target(name="hf-tokenizer", make=hf_tokenizer, use=use_tokenizer, refusals=(ModelRefused,), share=10),
    Target(name="template", make=template, use=use_template, refusals=(ModelRefused, ClientError), share=10),
    Target(name="runtime-toml", make=runtime_toml, use=use_runtime_toml, refusals=(SettingsError,), share=30),
    Target(name="environment", make=environment, use=use_environment, refusals=(SettingsError,), share=100),
    Target(name="keys", make=keys_file, use=use_keys_file, refusals=(SettingsError,), share=200),
)
