"""Gemma 4 beyond what every described architecture is tested for: llama.cpp, shared keys, and the inputs of layers."""

import attrs
import numpy as np
import pytest

from tests.kit.engine.step_batches import run_whole
from tests.kit.model.described import (
    EXACT,
    FOLDER,
    described_cases,
    load_described,
    record_and_weights,
    write_described,
)
from tests.kit.model.described_gguf import write_described_gguf
from tests.kit.model.naive_llama import log_softmax
from tlserve.errors import ModelRefused
from tlserve.kernels.reference import elementwise
from tlserve.model.decoder import mixers
from tlserve.model.decoder.numerics import Numerics
from tlserve.model.decoder.reference import ReferenceModel
from tlserve.model.load import load_model

CASES = {name: case for name, case in described_cases().items() if name.startswith("gemma4")}
LLAMA_CPP = np.load(FOLDER / "llama_cpp.npz")


def gelu_of_a_table(x, kind):
    """Apply gelu as llama.cpp does: from a table in half precision."""
    assert kind == "gelu_tanh"
    half = x.astype(np.float16).astype(np.float32)
    elementwise.activate(half, kind)
    x[:] = np.where(np.abs(x) < 10, half.astype(np.float16), np.maximum(x, 0))


@pytest.mark.spec("MOD-20", "MOD-56")
@pytest.mark.parametrize("name", CASES)
def test_gemma_4_gives_what_llama_cpp_computes_but_for_its_gelu(tmp_path, monkeypatch, name):
    case = CASES[name]
    monkeypatch.setattr(mixers, "activate", gelu_of_a_table)
    path = write_described_gguf(tmp_path / "described.gguf", case)
    ours = log_softmax(run_whole(load_model(path, threads=1, kernels=EXACT).model, case.ids).logits)
    assert np.abs(ours[case.rows] - LLAMA_CPP[name]).max() < 5e-4


@pytest.mark.spec("MOD-50")
@pytest.mark.parametrize("kind", ["checkpoint", "gguf"])
def test_layers_that_use_the_keys_of_others_may_have_some_that_are_not_used(tmp_path, kind):
    case = CASES["gemma4_text"]
    parts = {"q_proj": (64, 64), "k_proj": (32, 64), "v_proj": (32, 64), "k_norm": (16,)}
    further = {f"model.layers.2.self_attn.{part}.weight": shape for part, shape in parts.items()}
    more = attrs.evolve(case, shapes=dict(case.shapes) | further)
    path = write_described(tmp_path, more) if kind == "checkpoint" else write_described_gguf(tmp_path / "m.gguf", more)
    logits = run_whole(load_model(path, threads=1, kernels=EXACT).model, case.ids).logits
    assert np.abs(log_softmax(logits)[case.rows] - case.logprobs).max() < 1e-4
    equal = CASES["gemma4_text, values from keys"]
    more = attrs.evolve(equal, shapes=dict(equal.shapes) | {"model.layers.1.self_attn.v_proj.weight": (32, 64)})
    with pytest.raises(ModelRefused, match=r"v_proj\.weight' is not part of the architecture"):
        load_model(write_described(tmp_path / "own", more), threads=1)


@pytest.mark.spec("MOD-56")
@pytest.mark.parametrize("part", ["input_table", "input_projection"])
def test_both_parts_of_the_inputs_of_layers_are_alive(tmp_path, part):
    case = CASES["gemma4_text"]
    decoder, weights = record_and_weights(tmp_path, case)
    nothing = attrs.evolve(weights.matrices[part], rows=np.zeros_like(weights.matrices[part].rows))
    changed = attrs.evolve(weights, matrices={**weights.matrices, part: nothing})
    logits = run_whole(ReferenceModel(decoder, changed, Numerics("f32", "f32")), case.ids).logits
    assert np.abs(log_softmax(logits)[case.rows] - case.logprobs).max() > 0.01


@pytest.mark.spec("MOD-100")
def test_layers_that_use_the_keys_of_others_take_no_memory_for_them(tmp_path):
    model = load_described(tmp_path, CASES["gemma4_text"])
    own = ((2, 16), (2, 32))  # key heads and their size in the first two of four layers
    assert model.spec.kv_bytes_per_token == sum(2 * 4 * heads * size for heads, size in own)
    store = model.new_kv_store(2, 8)
    assert [keys.shape for keys in store.keys] == [(16, *sizes) for sizes in own]
