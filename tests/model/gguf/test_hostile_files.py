"""Whole directories with one truncated, damaged or hostile file: they load or are refused, quickly and in little memory.

A model that loads is used: its tokenizer encodes, its template renders. A corpus of hostile files comes first, then files from
hypothesis.
"""

import contextlib
import json
import shutil
import time
import tracemalloc
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.model.golden_kin import KIN, kin_cases, write_kin
from tlserve.chat.messages import Role, Turn
from tlserve.chat.prompt import encode_chat
from tlserve.chat.templates.template import Template
from tlserve.errors import ClientError, ModelMissing, ModelRefused, ServerFault
from tlserve.model.load import load_model
from tlserve.text.tokenizer import build_tokenizer

TOKENIZER = json.loads((KIN.parent / "tokenizers" / "qwen2.json").read_text())
FILES = {
    "tokenizer_config.json": {"eos_token": "<|im_end|>", "chat_template": "{{ messages[0].content }}"},
    "special_tokens_map.json": {"bos_token": {"content": "<|im_start|>"}},
    "generation_config.json": {"temperature": 0.7, "eos_token_id": [2]},
    "chat_template.jinja": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}",
}
TIME_LIMIT_S = 5.0
MEMORY_LIMIT_BYTES = 96 << 20


@pytest.fixture
def directory(tmp_path):
    place = write_kin(tmp_path / "m", kin_cases()["llama tied"])
    shutil.copy(KIN.parent / "tokenizers" / "qwen2.json", place / "tokenizer.json")
    for name, document in FILES.items():
        (place / name).write_text(document if isinstance(document, str) else json.dumps(document))
    return place


def use(directory):
    """Load a directory and use the model: raises only ModelRefused."""
    loaded = load_model(directory, threads=1)
    tokenizer = build_tokenizer(loaded.metadata)
    template = Template.parse(loaded.chat_template or "")
    with contextlib.suppress(ClientError, ServerFault):  # an error that the client of a request would get
        encode_chat(template, tokenizer, [Turn(Role.USER, "aaaa hello 123 \u00e9" + "a" * 60 + "b")])
    assert all(isinstance(tokenizer.token_bytes(token), bytes) for token in range(tokenizer.vocabulary_size))


@contextlib.contextmanager
def limits():
    tracemalloc.start()
    started = time.perf_counter()
    try:
        yield
        assert time.perf_counter() - started < TIME_LIMIT_S
        assert tracemalloc.get_traced_memory()[1] < MEMORY_LIMIT_BYTES
    finally:
        tracemalloc.stop()


def test_the_whole_directory_loads_and_is_used(directory):
    with limits():
        use(directory)


NASTY_JSON = {
    "nothing": b"",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "null": b"null",
    "a number": b"7",
    "a list": b"[]",
    "open": b"{",
    "two documents": b"{}{}",
    "deep lists": b"[" * 500_000,
    "deep objects": b'{"a":' * 200_000,
    "a long number": b'{"vocab_size": ' + b"9" * 100_000 + b"}",
    "infinity": b'{"temperature": Infinity, "rope_theta": NaN}',
    "a lone surrogate": b'{"chat_template": "\\ud800", "model_type": "\\udfff"}',
    "zeros": bytes(4096),
    "a long text": b'{"chat_template": "' + b"x" * 3_000_000 + b'"}',
    "many keys": b"{" + b",".join(b'"k%d": 0' % i for i in range(40_000)) + b"}",
    "too large": b" " * (65 << 20),
}


@pytest.mark.spec("MOD-31")
@pytest.mark.parametrize("name", NASTY_JSON)
def test_hostile_json_in_place_of_any_file_is_refused_or_harmless(directory, name):
    whole = {path: path.read_bytes() for path in directory.glob("*.json")}
    for path, data in whole.items():
        path.write_bytes(NASTY_JSON[name])
        with limits(), contextlib.suppress(ModelRefused, ModelMissing):
            use(directory)
        path.write_bytes(data)


def changed(**changes):
    return {**TOKENIZER, **changes}


def model_with(**changes):
    return changed(model={**TOKENIZER["model"], **changes})


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(kind, part, times):
    return {"type": "Sequence", kind: [part] * times}


def nested(depth):
    part = {"type": "NFC"}
    for _ in range(depth):
        part = {"type": "Sequence", "normalizers": [part]}
    return part


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
HOSTILE_TOKENIZERS = {
    "a text that grows": (
        changed(normalizer=sequence("normalizers", replace({"String": "a"}, "a" * 50), 6)),
        "times as long",
    ),
    "growth from nothing": (changed(normalizer=replace({"Regex": ""}, "x" * 100)), "times as long"),
    "a long prefix": (changed(normalizer={"type": "Prepend", "prepend": "x" * 1000}), "times as long"),
    "normalisers without end": (changed(normalizer=sequence("normalizers", {"type": "NFC"}, 500)), "times as long"),
    "nested normalisers": (changed(normalizer=nested(100)), "nested more than 8 levels deep"),
    "normalisers that are a number": (changed(normalizer={"type": "Sequence", "normalizers": 3}), "huggingface.json"),
    "a pattern that is none": (changed(pre_tokenizer=split("(")), "huggingface.json"),
    "an unknown part": (changed(pre_tokenizer={"type": "Exec"}), "huggingface.json"),
    "a vocabulary with a huge id": (model_with(vocab={"a": 1 << 31}), "ids up to"),
    "a vocabulary with a negative id": (model_with(vocab={"a": -1}), "huggingface.json"),
    "a vocabulary of numbers": (model_with(vocab=7), "huggingface.json"),
    "merges of nothing": (model_with(merges=[["zz", "yy"]]), "huggingface.json"),
    "merges that are numbers": (model_with(merges=[1, 2]), "huggingface.json"),
    "an unknown model": (changed(model={"type": "Neural", "vocab": {}}), "huggingface.json"),
    "an added token that is a number": (changed(added_tokens=[3]), "is not an object"),
    "an added token without an id": (changed(added_tokens=[{"content": "x"}]), "no content or no id"),
    "an added token with a huge id": (changed(added_tokens=[{"id": 1 << 40, "content": "x"}]), "ids up to"),
    "an added token that steals an id": (changed(added_tokens=[{"id": 9, "content": "new"}]), "does not have the id"),
    "added tokens that are an object": (changed(added_tokens={"a": 1}), "not a list"),
    "a decoder unknown": (changed(decoder={"type": "Magic"}, pre_tokenizer=None), "huggingface.json"),
}


@pytest.mark.spec("MOD-31", "TEXT-20")
@pytest.mark.parametrize("name", HOSTILE_TOKENIZERS)
def test_a_hostile_tokenizer_is_refused_with_its_reason(directory, name):
    document, reason = HOSTILE_TOKENIZERS[name]
    (directory / "tokenizer.json").write_text(json.dumps(document))
    with limits(), pytest.raises(ModelRefused, match=reason):
        use(directory)


@pytest.mark.spec("TEXT-24")
@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|aa)+$", r"((a*)*)*c"])
def test_a_pattern_that_never_ends_fails_one_request_and_not_the_server(directory, pattern):
    parts = [split(pattern), BYTES]
    document = changed(pre_tokenizer={"type": "Sequence", "pretokenizers": parts})
    (directory / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = build_tokenizer(load_model(directory, threads=1).metadata)
    with limits(), contextlib.suppress(ServerFault):
        tokenizer.encode("a" * 60 + "b")
    assert tokenizer.encode("hello")


HOSTILE_TEMPLATES = {
    "a loop without end": "{% for i in range(10**9) %}{{ i }}{% endfor %}",
    "a long text": "{{ 'a' * 10**9 }}",
    "a power": "{{ 9 ** 9 ** 9 }}",
    "a macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a walk to the interpreter": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a walk through a cycler": "{{ cycler.__init__.__globals__.os.system('exit 1') }}",
    "a file": "{% include '/etc/passwd' %}",
    "an unknown filter": "{% if false %}{{ 1 | shell }}{% endif %}",
    "open": "{% for m in messages %}",
    "deep": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested blocks": "{% if true %}" * 3000 + "{% endif %}" * 3000,
}


@pytest.mark.spec("MOD-31")
@pytest.mark.parametrize("name", HOSTILE_TEMPLATES)
def test_a_hostile_template_is_refused_at_load_or_fails_its_request(directory, name):
    (directory / "chat_template.jinja").write_text(HOSTILE_TEMPLATES[name])
    with limits(), contextlib.suppress(ModelRefused, ModelMissing):
        use(directory)


MUTATION = st.one_of(
    st.tuples(st.just("cut"), st.floats(0, 1)),
    st.tuples(st.just("flip"), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=8)),
    st.tuples(st.just("insert"), st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=12))),
)


def mutated(data, mutation):
    kind, how = mutation
    if kind == "cut":
        return data[: int(how * len(data))]
    if kind == "insert":
        place = int(how[0] * len(data))
        return data[:place] + how[1] + data[place:]
    damaged = bytearray(data)
    for place, value in how:
        damaged[min(int(place * len(data)), len(data) - 1)] = value
    return bytes(damaged)


@pytest.mark.spec("MOD-31")
@given(name=st.sampled_from(["config.json", "tokenizer.json", "model.safetensors", *FILES]), mutation=MUTATION)
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_used_or_refused_and_nothing_else(directory, name, mutation):
    path = directory / name
    whole = path.read_bytes()
    path.write_bytes(mutated(whole, mutation))
    try:
        with warnings.catch_warnings(), contextlib.suppress(ModelRefused, ModelMissing):
            use(directory)
    finally:
        path.write_bytes(whole)
