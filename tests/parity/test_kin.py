"""Every model of the Llama family, compared with transformers on the same checkpoint in float32 (tests/golden/kin)."""

import numpy as np
import pytest

from tests.kit.engine.step_batches import Rows, forward_rows, run_whole
from tests.kit.model.golden_kin import kin_cases, load_kin, write_kin
from tests.kit.model.kin_gguf import write_kin_gguf
from tests.kit.model.naive_llama import log_softmax
from tlserve.kernels.choose import KernelChoice
from tlserve.model.gguf.facts import gguf_decoder
from tlserve.model.gguf.tensors import GgufFile
from tlserve.model.load import load_model

CASES = kin_cases()
LOGIT_BOUND = 5e-4  # logits reach 10; transformers adds in another order, also in float32
SURE_MARGIN = 2e-3
EXACT = KernelChoice(kernels="reference", kv_precision="f32")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return each case's model."""
    return {name: load_kin(tmp_path_factory.mktemp("kin"), case, EXACT) for name, case in CASES.items()}


@pytest.mark.spec("MOD-19", "MOD-45")
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(models, name):
    case = CASES[name]
    logits = run_whole(models[name], case.ids).logits
    assert np.abs(logits[case.rows] - case.logits).max() < LOGIT_BOUND
    next_logprobs = log_softmax(logits)[np.arange(len(case.ids) - 1), case.ids[1:]]
    assert np.abs(next_logprobs - case.next_logprobs).max() < LOGIT_BOUND


@pytest.mark.spec("MOD-19")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if len(case.greedy)])
def test_greedy_answers_are_those_of_transformers_while_the_choice_is_sure(models, name):
    case, model = CASES[name], models[name]
    kv = model.new_kv_store(40, 16)
    table = range(40)
    (logits,) = forward_rows(model, kv, Rows(case.ids, 0, table))
    answer = []
    for position in range(len(case.ids), min(len(case.ids) + len(case.greedy), model.spec.context_tokens)):
        answer.append(int(logits[-1].argmax()))
        (logits,) = forward_rows(model, kv, Rows(answer[-1:], position, table))
    unsure = [i for i, margin in enumerate(case.margins) if margin < SURE_MARGIN]
    end = min(unsure[0] if unsure else len(case.greedy), len(answer))
    assert answer[:end] == case.greedy[:end].tolist()
    assert end > 0


YARN = {
    "rope__scaling__type": "yarn",
    "rope__scaling__factor": 4.0,
    "rope__scaling__original_context_length": 64,
}
AS_GGUF = {
    "llama": {},
    "llama linear": {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0, "context_length": 256},
    "llama yarn": YARN,
    "llama tied": {},
    "llama biases": {},
    "mistral": {"attention__sliding_window": 24},
    "mistral, no window": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3 yarn": YARN,
}


@pytest.mark.spec("MOD-20")
@pytest.mark.parametrize("name", AS_GGUF)
def test_the_same_checkpoint_as_gguf_also_has_the_logits_of_transformers(tmp_path, name):
    case = CASES[name]
    path = write_kin_gguf(tmp_path / "kin.gguf", case, **AS_GGUF[name])
    model = load_model(path, threads=1, kernels=EXACT).model
    assert np.abs(run_whole(model, case.ids).logits[case.rows] - case.logits).max() < LOGIT_BOUND


@pytest.mark.spec("MOD-20")
def test_every_fourth_layer_of_a_gguf_smollm3_has_no_rotation(tmp_path):
    with GgufFile(write_kin_gguf(tmp_path / "kin.gguf", CASES["smollm3"])) as file:
        metadata = file.header.metadata | {"smollm3.block_count": 9}
    attentions = gguf_decoder(metadata, 320).attentions()
    assert [i for i, attention in enumerate(attentions) if attention.rope is None] == [3, 7]


LEFT_OUT = {
    "llama linear": {"rope_scaling": None, "max_position_embeddings": 256},
    "llama llama3": {"rope_scaling": None},
    "llama yarn": {"rope_scaling": None, "max_position_embeddings": 256},
    "llama yarn, mscale": {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    "mistral": {"sliding_window": None},
    "mistral, window of 100": {"sliding_window": 101},
    "qwen2, window of the second layer": {"max_window_layers": 0},
    "smollm3": {"no_rope_layer_interval": 3},
}


@pytest.mark.spec("MOD-45")
@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_missing_part_of_the_architecture_is_detected(tmp_path, name):
    case = CASES[name]
    model = load_model(write_kin(tmp_path, case, **LEFT_OUT[name]), threads=1, kernels=EXACT).model
    logits = run_whole(model, case.ids).logits
    assert np.abs(logits[case.rows] - case.logits).max() > 20 * LOGIT_BOUND
