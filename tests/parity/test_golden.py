"""The real model, compared with the results of transformers for the same file in float32 (tests/golden/smol-135m.json)."""

import json

import numpy as np
import pytest

from tests.kit.engine.step_batches import Rows, forward_rows
from tests.kit.model.naive_llama import log_softmax
from tests.kit.source_tree import GOLDEN
from tlserve.kernels.choose import KernelChoice
from tlserve.model.load import load_model

SMOL = GOLDEN / "smol-135m.json"
CASES = {case["name"]: case for case in json.loads(SMOL.read_text())}

LOGPROB_BOUND = 1e-3
SURE_MARGIN = 0.02  # below it, another order of float32 sums can choose the other token

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def smol(smol_path):
    return load_model(smol_path, kernels=KernelChoice(kernels="reference", activations="f32", kv_precision="f32")).model


@pytest.fixture(scope="module")
def prompts(smol):
    """Return, for every golden prompt, the log-probabilities after each token: all prompts in one step."""
    kv = smol.new_kv_store(64, 16)
    rows, first = [], 0
    for case in CASES.values():
        blocks = -(-len(case["ids"]) // 16)
        rows.append(Rows(case["ids"], 0, range(first, first + blocks)))
        first += blocks
    return dict(zip(CASES, map(log_softmax, forward_rows(smol, kv, *rows)), strict=True))


@pytest.mark.spec("MOD-11")
@pytest.mark.parametrize("name", CASES)
def test_ten_most_likely_tokens_have_the_golden_log_probabilities(prompts, name):
    for token, logprob in CASES[name]["top10"]:
        assert prompts[name][-1, token] == pytest.approx(logprob, abs=LOGPROB_BOUND)


@pytest.mark.parametrize("name", CASES)
def test_most_likely_token_is_the_golden_one(prompts, name):
    assert int(prompts[name][-1].argmax()) == CASES[name]["top10"][0][0]


@pytest.mark.spec("MOD-11")
@pytest.mark.parametrize("name", CASES)
def test_mean_negative_log_likelihood_of_the_prompt_is_the_golden_one(prompts, name):
    ids = CASES[name]["ids"]
    nll = -prompts[name][np.arange(len(ids) - 1), ids[1:]].mean()
    assert nll == pytest.approx(CASES[name]["mean_nll"], abs=LOGPROB_BOUND)


@pytest.mark.spec("MOD-11")
def test_greedy_continuations_are_the_golden_ones_while_the_choice_is_sure(smol):
    kv = smol.new_kv_store(12 * len(CASES), 16)
    running = {name: Rows(case["ids"], 0, range(12 * i, 12 * i + 12)) for i, (name, case) in enumerate(CASES.items())}
    answers = {name: [] for name in CASES}
    while running:
        logits = forward_rows(smol, kv, *running.values())
        for (name, rows), after in zip(list(running.items()), logits, strict=True):
            token = int(after[-1].argmax())
            answers[name].append(token)
            if token == 2 or len(answers[name]) == len(CASES[name]["greedy"]):
                del running[name]
            else:
                running[name] = Rows([token], rows.start + len(rows.tokens), rows.table)
    for name, case in CASES.items():
        unsure = [i for i, margin in enumerate(case["greedy_margin"]) if margin < SURE_MARGIN]
        end = unsure[0] if unsure else len(case["greedy"])
        assert answers[name][:end] == case["greedy"][:end], name
