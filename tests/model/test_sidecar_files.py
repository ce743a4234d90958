"""The JSON files of a model: their size in memory is bounded before they are parsed."""

import struct
import tracemalloc

import pytest

from tlserve.errors import ModelRefused
from tlserve.model.hugging_face.safetensors_file import read_header
from tlserve.model.hugging_face.tokenizer import read_tokenizer
from tlserve.model.sidecar_files import parse_json, read_json

LISTS = "[" + "[]," * 1_300_000 + "[]]"


def refused_in_little_memory(read, size):
    tracemalloc.start()
    try:
        with pytest.raises(ModelRefused, match="members; at most"):
            read()
        assert tracemalloc.get_traced_memory()[1] < 4 * size + (1 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.spec("MOD-15")
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_file_of_many_empty_lists_is_refused_before_it_is_parsed(tmp_path, name):
    path = tmp_path / name
    path.write_text(LISTS)
    refused_in_little_memory(lambda: read_json(path), len(LISTS))


@pytest.mark.spec("MOD-15")
def test_a_tokenizer_of_many_empty_lists_is_refused_before_it_is_parsed(tmp_path):
    text = '{"model": ' + LISTS[:-1] + "," + LISTS[1:] + "}"
    (tmp_path / "tokenizer.json").write_text(text)
    refused_in_little_memory(lambda: read_tokenizer(tmp_path, {}, 10), len(text))


@pytest.mark.spec("MOD-15")
def test_a_safetensors_header_of_many_empty_lists_is_refused_before_it_is_parsed():
    text = LISTS.encode()
    refused_in_little_memory(lambda: read_header(struct.pack("<Q", len(text)) + text, "x"), len(text))


def test_members_are_counted_roughly_and_a_small_document_is_read():
    assert parse_json('{"a": [1, 2, "x"], "b": {}}', 100) == {"a": [1, 2, "x"], "b": {}}
    with pytest.raises(ValueError, match="about 9 members; at most 8"):
        parse_json('{"a": [1, 2, "x"], "b": {}}', 8)
