"""Odd GGUF files: what llama.cpp loads is loaded, the rest is refused by name; the reference page has a line for each."""

import json
import re
import struct

import numpy as np
import pytest

from tests.kit.engine.step_batches import run_whole
from tests.kit.model.gguf_draft import U64, tiny_draft
from tests.kit.model.golden_kin import KIN
from tests.kit.source_tree import CHECKOUT
from tlserve.errors import ModelRefused
from tlserve.model.load import load_model
from tlserve.text.tokenizer import build_tokenizer

VOCABULARIES = json.loads((KIN.parent / "vocabularies/kinds.json").read_text())
PAGE = CHECKOUT / "docs/reference/gguf-files.md"


def put(name, value, kind=None):
    return lambda draft: draft.put(name, value, kind)


def put_token(name, value, kind=None):
    return put(f"tokenizer.ggml.{name}", value, kind)


def again(draft):
    draft.keys.append(draft.keys[0])


def tensor_again(draft):
    draft.tensors.append(draft.tensors[-1])


def aligned(size):
    def change(draft):
        draft.alignment = size or 32
        draft.put("general.alignment", size)

    return change


def version(raw):
    def change(draft):
        draft.version = raw

    return change


def kind_of_tensor(kind):
    def change(draft):
        name, dimensions, _, data = draft.tensors[0]
        draft.tensors[0] = (name, dimensions, kind, data)

    return change


def cut(draft):
    name, dimensions, kind, data = draft.tensors[-1]
    draft.tensors[-1] = (name, dimensions, kind, data[: len(data) // 2])


def without_output(draft):
    draft.tensors = [tensor for tensor in draft.tensors if tensor[0] != "output.weight"]


LOADS = {
    "integers of another width": put("llama.block_count", 2, U64),
    "one number for each layer, all equal": put("llama.attention.head_count_kv", [2, 2]),
    "no `general.name`": put("general.name", None),
    "no `output.weight`": without_output,
    "`general.alignment` 8": aligned(8),
    "`general.alignment` 128": aligned(128),
    "version 2": version(struct.pack("<I", 2)),
    "keys that nobody knows": put("x.y", [1, 2, 3]),
    "an empty array": lambda draft: draft.keys.append(("x.empty", 9, struct.pack("<IQ", 4, 0))),
}
REFUSED = {
    "big-endian": (version(struct.pack(">I", 3)), "big-endian"),
    "version 1": (version(struct.pack("<I", 1)), "version 1 is not served"),
    "version 4": (version(struct.pack("<I", 4)), "version 4 is not served"),
    "a key twice": (again, "'general.architecture' occurs twice"),
    "an empty key": (put("", 1), "key is empty"),
    "a tensor twice": (tensor_again, "occurs twice"),
    "`general.alignment` 0 or 48": (put("general.alignment", 48), "general.alignment must be a power of two"),
    "a tensor of an unknown type": (kind_of_tensor(77), "unknown type 77"),
    "a tensor of a type that llama.cpp no longer reads": (kind_of_tensor(31), "Q4_0_4_4"),
    "an array of arrays": (
        lambda draft: draft.keys.append(("x", 9, struct.pack("<IQ", 9, 0))),
        "arrays of the GGUF value type 9",
    ),
    "a value of an unknown type": (lambda draft: draft.keys.append(("x", 13, b"")), "unknown GGUF value type 13"),
    "no `general.architecture`": (put("general.architecture", None), "the architecture None is not served"),
    "another number for each layer": (put("llama.attention.head_count_kv", [2, 1]), "differs from layer to layer"),
    "a file that ends too early": (cut, "it is truncated"),
}


def written(tmp_path, change, vocabulary=None):
    draft = tiny_draft(vocabulary)
    change(draft)
    path = tmp_path / "odd.gguf"
    path.write_bytes(draft.written())
    return path


@pytest.mark.spec("MOD-59")
@pytest.mark.parametrize("name", LOADS)
def test_odd_files_that_llama_cpp_loads_are_served(name, tmp_path):
    logits = run_whole(load_model(written(tmp_path, LOADS[name])).model, b"abc").logits
    if name != "no `output.weight`":
        (tmp_path / "whole").mkdir()
        assert np.array_equal(
            logits, run_whole(load_model(written(tmp_path / "whole", lambda _: None)).model, b"abc").logits
        )


@pytest.mark.spec("MOD-59")
@pytest.mark.parametrize("name", REFUSED)
def test_files_that_cannot_be_served_are_refused_by_name(name, tmp_path):
    change, reason = REFUSED[name]
    with pytest.raises(ModelRefused, match=reason):
        load_model(written(tmp_path, change))


def more(values, count):
    return [*values, *values[:count]]


def of(kind, key):
    return VOCABULARIES[kind]["vocabulary"][key]


VOCABULARY_LOADS = {
    "an id of a special token outside the vocabulary": ("gemma4", put_token("bos_token_id", (1 << 32) - 1)),
    "`token_type` with an unknown number": ("gemma4", put_token("token_type", [9, *of("gemma4", "token_type")[1:]], 5)),
    "`token_type` longer than the tokens": ("gemma4", put_token("token_type", more(of("gemma4", "token_type"), 9), 5)),
    "`scores` longer than the tokens": ("llama", put_token("scores", more(of("llama", "scores"), 9))),
    "an empty token": ("gemma4", put_token("tokens", ["", *of("gemma4", "tokens")[1:]])),
    "no `tokenizer.ggml.eos_token_id`": ("llama", put_token("eos_token_id", None)),
}
VOCABULARY_REFUSED = {
    "`token_type` shorter than the tokens": ("gemma4", put_token("token_type", [1], 5), "token_type has 1 entries"),
    "`scores` shorter than the tokens": ("llama", put_token("scores", [1.0]), "scores has 1 entries"),
    "no `scores` in the kind `llama`": ("llama", put_token("scores", None), "scores has 0 entries"),
    "no `merges`": ("gemma4", put_token("merges", None), "merges is missing"),
    "a token twice": ("gemma4", put_token("tokens", ["a", *of("gemma4", "tokens")[1:]]), "the same token twice"),
}


@pytest.mark.spec("MOD-59")
@pytest.mark.parametrize("name", VOCABULARY_LOADS)
def test_odd_vocabularies_that_llama_cpp_loads_are_served(name, tmp_path):
    kind, change = VOCABULARY_LOADS[name]
    vocabulary = VOCABULARIES[kind]["vocabulary"]
    loaded = load_model(written(tmp_path, change, vocabulary))
    tokenizer = build_tokenizer(loaded.metadata)
    plain = build_tokenizer({f"tokenizer.ggml.{key}": value for key, value in vocabulary.items()})
    assert tokenizer.encode("the int 123") == plain.encode("the int 123")
    assert loaded.bos_id is None


@pytest.mark.spec("MOD-59")
@pytest.mark.parametrize("name", VOCABULARY_REFUSED)
def test_vocabularies_that_cannot_be_served_are_refused_by_key(name, tmp_path):
    kind, change, reason = VOCABULARY_REFUSED[name]
    loaded = load_model(written(tmp_path, change, VOCABULARIES[kind]["vocabulary"]))
    with pytest.raises(ModelRefused, match=reason):
        build_tokenizer(loaded.metadata)


def test_a_text_to_embed_ends_with_eos_where_the_flag_says_so():
    for flag in (True, False):
        values = {**VOCABULARIES["llama"]["vocabulary"], "add_eos_token": flag}
        assert build_tokenizer({f"tokenizer.ggml.{key}": value for key, value in values.items()}).add_eos is flag


def test_the_page_has_a_line_for_every_odd_file_and_what_becomes_of_it():
    lines = re.findall(r"^\| (.+?) \| (loads|refused) \| (loads|refused)", PAGE.read_text(), re.MULTILINE)
    served = {name: here for name, here, _ in lines if not name.startswith("split: ")}
    assert served == {
        **dict.fromkeys([*LOADS, *VOCABULARY_LOADS], "loads"),
        **dict.fromkeys([*REFUSED, *VOCABULARY_REFUSED], "refused"),
    }
