"""The native kernels, compared with the truth: the float64 forward, transformers' golden data, and the perplexity of a text."""

import json

import numpy as np
import pytest

from tests.kit.engine.step_batches import Rows, forward_rows, run_whole
from tests.kit.model.naive_llama import log_softmax, naive_hidden, naive_logits
from tests.kit.model.native_models import (
    ISAS,
    MIXED,
    SUPER_MIXED,
    block_shape,
    dequantised,
    native,
    stored,
    super_shape,
)
from tests.kit.model.tiny_models import read_arrays, tiny_shape, tiny_tensors
from tests.kit.source_tree import CHECKOUT
from tlserve.kernels.choose import KernelChoice
from tlserve.model.decoder.numerics import Numerics
from tlserve.model.load import load_model
from tlserve.text.tokenizer import build_tokenizer

TESTS = CHECKOUT / "tests"
GOLDEN = json.loads((TESTS / "golden" / "smol-135m.json").read_text())

# float32 keeps 24 bits; a logit of the tiny models is about 3 and passes some twenty roundings in a row.
F32_BOUND = 2e-4
# A step of int8 is 1/127 of a block's greatest value, its error at most half of that. Relative to the spread of the logits, whose
# errors are sums of many small ones.
INT8_BOUND = 0.25
INT8_MEAN_BOUND = 0.03
INT12_BOUND, INT12_MEAN_BOUND = (
    INT8_BOUND / 8,
    INT8_MEAN_BOUND / 8,
)  # a step of at most 1/1020; the store in f16 would add as much
# Where transformers' first choice leads by more, int8 activations must choose the same.
INT8_SURE_MARGIN = 0.5


@pytest.mark.spec("KER-7")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "changes", [{}, {"heads": 9, "kv_heads": 3, "head_size": 8, "rotated": 8, "hidden": 24}, {"layers": 4}]
)
def test_f32_logits_and_hidden_states_are_within_the_bound_of_the_float64_truth(isa, changes):
    shape = tiny_shape(**changes)
    arrays = tiny_tensors(shape, seed=5)
    model = native(shape, read_arrays(shape, arrays)[1], Numerics("f32", "f32"), isa=isa, threads=2)
    tokens = np.random.default_rng(5).integers(0, shape.vocabulary, 150)
    out = run_whole(model, tokens)
    assert np.abs(out.logits - naive_logits(arrays, shape, tokens)).max() < F32_BOUND
    assert np.abs(out.hidden - naive_hidden(arrays, shape, tokens)).max() < F32_BOUND


@pytest.mark.spec("KER-8")
@pytest.mark.parametrize(
    ("shape", "kinds"), [(block_shape(), MIXED), (super_shape(), SUPER_MIXED)], ids=["blocks", "K"]
)
@pytest.mark.parametrize(
    ("numerics", "most", "mean"),
    [
        (Numerics("int8", "f16"), INT8_BOUND, INT8_MEAN_BOUND),
        (Numerics("int12", "f32"), INT12_BOUND, INT12_MEAN_BOUND),
    ],
    ids=["int8", "int12"],
)
def test_quantised_logits_are_within_the_bound_of_the_float64_truth(shape, kinds, numerics, most, mean):
    tensors = stored(shape, kinds, seed=6)
    tokens = np.random.default_rng(6).integers(0, 256, 100)
    truth = naive_logits(dequantised(tensors), shape, tokens)
    logits = run_whole(native(shape, tensors, numerics), tokens).logits
    error = np.abs(logits - truth) / truth.std()
    assert error.max() < most
    assert error.mean() < mean


@pytest.fixture(scope="module")
def smol(smol_path):
    """Return the real model: numpy in float32, native in float32, native as it is served."""
    choices = {
        "reference": KernelChoice(kernels="reference", activations="f32", kv_precision="f32"),
        "f32": KernelChoice(kernels="native", activations="f32", kv_precision="f32"),
        "int8": KernelChoice(kernels="native", activations="int8"),
    }
    return {name: load_model(smol_path, kernels=choice) for name, choice in choices.items()}


def losses(loaded, text):
    """Return the negative log-likelihood of every token of `text` after the first, by 512 tokens of one sequence at a time."""
    tokens = list(build_tokenizer(loaded.metadata).encode(text))
    blocks = -(-len(tokens) // 16)
    kv, found = loaded.model.new_kv_store(blocks, 16), []
    for start in range(0, len(tokens), 512):
        part = tokens[start : start + 512]
        (logits,) = forward_rows(loaded.model, kv, Rows(part, start, range(blocks)))
        following = tokens[start + 1 : start + len(part) + 1]
        found.append(-log_softmax(logits[: len(following)])[np.arange(len(following)), following])
    return np.concatenate(found)


@pytest.mark.spec("KER-7")
@pytest.mark.real_model
def test_perplexity_in_f32_is_that_of_the_reference_to_four_digits(smol):
    text = (TESTS / "golden" / "lighthouse.txt").read_text()
    reference, ours = (np.exp(losses(smol[name], text).mean()) for name in ("reference", "f32"))
    assert f"{ours:.4g}" == f"{reference:.4g}"
    assert ours == pytest.approx(reference, rel=5e-5)


@pytest.mark.spec("KER-8")
@pytest.mark.real_model
def test_perplexity_in_int8_is_within_half_a_percent_of_f32(smol):
    """Two texts of 1600 tokens together; with fewer the random differences of single tokens (0.08 each) exceed the bound."""
    texts = [(TESTS / "golden" / "lighthouse.txt").read_text(), (TESTS.parent / "LICENSE").read_text()[:6000]]
    f32, int8 = (np.concatenate([losses(smol[name], text) for text in texts]) for name in ("f32", "int8"))
    assert abs(np.exp(int8.mean() - f32.mean()) - 1) < 0.005


@pytest.mark.spec("KER-27")
@pytest.mark.real_model
@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_greedy_choices_in_int8_are_the_golden_ones_where_the_lead_is_large(smol, case):
    logits = run_whole(smol["int8"].model, [*case["ids"], *case["greedy"]]).logits
    chosen = logits[len(case["ids"]) - 1 : -1].argmax(axis=1)
    sure = np.array(case["greedy_margin"]) > INT8_SURE_MARGIN
    assert (chosen == case["greedy"])[sure].all()


@pytest.mark.real_model
def test_mean_log_likelihood_of_the_golden_prompts_in_int8_is_near(smol):
    differences = []
    for case in GOLDEN:
        logits = log_softmax(run_whole(smol["int8"].model, case["ids"]).logits)
        ours = -logits[np.arange(len(case["ids"]) - 1), case["ids"][1:]].mean()
        differences.append(ours - case["mean_nll"])
    assert abs(np.mean(differences)) < 0.03
