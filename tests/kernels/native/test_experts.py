"""Experts natively: the bits of numpy for any number of rows and any crowd at one expert, and refusals of wrong parts."""

import attrs
import numpy as np
import pytest

from tests.kit.engine.schedules import same_bits
from tests.kit.engine.step_batches import run_whole
from tests.kit.model.mechanism_records import MECHANISMS, mechanism_weights
from tests.kit.model.native_models import F32, ISAS, MIXED, SUPER_MIXED, built_native
from tlserve.model.decoder.native.form import NativeParts
from tlserve.model.decoder.native.model import NativeModel
from tlserve.model.decoder.numerics import Numerics, rotation_tables
from tlserve.model.decoder.reference import ReferenceModel

ROW_NORM = (False, 1e-5, np.ones(32, np.float32), None)
EXPERTS = [name for name, decoder in MECHANISMS.items() if decoder.mixtures()]
INT12 = Numerics("int12", "f32")


def compared(decoder, weights, numerics, rows, isa):
    """Return the logits of the native kernels and of numpy for `rows` tokens."""
    tokens = np.random.default_rng(rows).integers(0, decoder.vocabulary, rows)
    native = NativeModel(built_native(), decoder, weights, numerics, isa=isa, threads=2)
    return [run_whole(model, tokens).logits for model in (native, ReferenceModel(decoder, weights, numerics))]


def long(decoder):
    """Return `decoder` with a context of 400 tokens; nothing turns, because its ropes are shorter."""
    return attrs.evolve(with_mixers(decoder, unturned), context_tokens=400)


def with_mixers(decoder, change):
    """Return `decoder` with `change` applied to every mixer."""
    blocks = [[attrs.evolve(b, mixers=tuple(map(change, b.mixers))) for b in layer.blocks] for layer in decoder.layers]
    layers = tuple(attrs.evolve(layer, blocks=tuple(b)) for layer, b in zip(decoder.layers, blocks, strict=True))
    return attrs.evolve(decoder, layers=layers)


def unturned(mixer):
    return attrs.evolve(mixer, rope=None) if hasattr(mixer, "rope") else mixer


@pytest.mark.spec("KER-41")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", EXPERTS)
@pytest.mark.parametrize("kinds", [MIXED, SUPER_MIXED, [F32]], ids=["blocks", "super-blocks", "f32"])
def test_experts_have_the_bits_of_numpy_for_any_number_of_rows(isa, name, kinds):
    decoder = MECHANISMS[name]
    weights = mechanism_weights(decoder, kinds)
    for rows in (1, 2, 8, 9, 30):
        assert same_bits(*compared(decoder, weights, INT12, rows, isa)), rows


@pytest.mark.spec("KER-41", "KER-20")
@pytest.mark.parametrize("isa", ISAS)
def test_experts_in_super_blocks_have_the_bits_of_numpy(isa):
    decoder = wide(MECHANISMS[EXPERTS[1]])
    weights = mechanism_weights(decoder, SUPER_MIXED)
    kinds = {matrix.kind for name, matrix in weights.matrices.items() if ".experts." in name}
    assert kinds == set(SUPER_MIXED)
    assert same_bits(*compared(decoder, weights, INT12, 20, isa))


def wide(decoder):
    """Return `decoder` with rows of 256, in its experts too."""

    def widened(mixer):
        if hasattr(mixer, "expert"):
            return attrs.evolve(mixer, expert=attrs.evolve(mixer.expert, width=256))
        return mixer

    return attrs.evolve(with_mixers(decoder, widened), hidden=256)


@pytest.mark.spec("KER-41")
def test_more_rows_at_one_expert_than_a_unit_takes_have_the_bits_of_numpy():
    decoder = long(MECHANISMS[EXPERTS[0]])
    weights = mechanism_weights(decoder)
    crowded = {
        name: (v + 100 * (np.arange(len(v)) == 1)).astype(np.float32)
        for name, v in weights.vectors.items()
        if "router" in name
    }
    weights = attrs.evolve(weights, vectors={**weights.vectors, **crowded})
    assert crowded
    assert same_bits(*compared(decoder, weights, INT12, 300, ISAS[0]))


@pytest.mark.spec("KER-41")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_a_router_with_numbers_that_are_not_finite_has_the_bits_of_numpy(value):
    for name in EXPERTS:
        decoder = MECHANISMS[name]
        weights = mechanism_weights(decoder)
        spoilt = {n: np.where(np.arange(len(v)) == 2, value, v) for n, v in weights.vectors.items() if "router" in n}
        spoilt = {n: v.astype(np.float32) for n, v in spoilt.items()}
        native, numpy = compared(
            decoder, attrs.evolve(weights, vectors={**weights.vectors, **spoilt}), INT12, 10, ISAS[0]
        )
        assert ((native.view(np.int32) == numpy.view(np.int32)) | (np.isnan(native) & np.isnan(numpy))).all()


def model_arguments(decoder):
    """Return the arguments of a model."""
    weights, module = mechanism_weights(decoder), built_native()
    matrices = {n: module.Matrix(m.kind, m.outputs, m.inputs, m.rows) for n, m in weights.matrices.items()}
    parts = NativeParts(decoder=decoder, matrices=matrices, vectors=weights.vectors, tables=rotation_tables(decoder))
    return parts.model()


def experts_part():
    """Return a model's arguments and the dict of its first experts."""
    arguments = model_arguments(MECHANISMS[EXPERTS[0]])
    return arguments, next(block["experts"] for block in arguments["blocks"] if block["experts"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"count": 0}, "1 to 1024 experts"),
        ({"count": 5}, "every expert has its matrices"),
        ({"groups": 4}, "groups are of one size"),
        ({"chosen": 100}, "cannot be chosen"),
        ({"chosen": 0}, "cannot be chosen"),
        ({"up": ()}, "every expert has its matrices"),
        ({"width": 0}, "a width and a known activation"),
        ({"activation": 99}, "a width and a known activation"),
        ({"activation": 4, "gate": ()}, "a clamped swiglu has a gate"),
        ({"router": None}, "router must be a Matrix"),
        ({"choice_bias": np.zeros(3, np.float32)}, "choice_bias"),
        ({"own_scales": np.zeros(3, np.float32)}, "own_scales"),
        ({"pre": (False, 1e-5, np.ones(64, np.float32), None)}, "all norms and a shared expert, or none"),
    ],
)
def test_experts_whose_parts_do_not_fit_are_refused(changes, reason):
    arguments, experts = experts_part()
    experts.update(changes)
    with pytest.raises((TypeError, ValueError), match=reason):
        built_native().Model(**arguments, activations="int12", isa=ISAS[0], threads=1)


@pytest.mark.parametrize(
    ("block", "part", "changes", "reason"),
    [
        (0, "attention", {"kv_from": 0}, "keys are of an earlier block"),
        (9, "attention", {"kv_from": 1}, "keys are of a block that stores some"),
        (9, "attention", {"kv_from": 3}, "keys of another block have its sizes"),
        (
            0,
            "attention",
            {"v": None, "whole_row": True, "q_norm": None, "k_norm": ROW_NORM},
            "values from keys that are normed",
        ),
        (0, "attention", {"v_norm": (False, 1e-5, np.ones(3, np.float32), None)}, "v_norm"),
        (2, "feed_forward", {"input_from": 129}, "the input of a layer is gated, and one of the inputs of all layers"),
        (2, "feed_forward", {"gate": None}, "the input of a layer is gated"),
        (2, None, {"out_scale": np.ones(2, np.float32)}, "out_scale"),
    ],
)
def test_keys_and_inputs_of_layers_that_do_not_fit_are_refused(block, part, changes, reason):
    arguments = model_arguments(MECHANISMS["keys of other layers, inputs of layers"])
    blocks = [dict(given) for given in arguments["blocks"]]
    changed = blocks[block] if part is None else blocks[block][part]
    changed.update(changes)
    with pytest.raises((TypeError, ValueError), match=reason):
        built_native().Model(**arguments | {"blocks": tuple(blocks)}, activations="int12", isa=ISAS[0], threads=1)


@pytest.mark.parametrize("width", [0, 1 << 30])
def test_inputs_of_layers_of_odd_sizes_are_refused(width):
    arguments = model_arguments(MECHANISMS["keys of other layers, inputs of layers"])
    arguments["inputs"]["width"] = width
    with pytest.raises(ValueError, match=r"inputs of layers have 1 to 2\*\*24 numbers"):
        built_native().Model(**arguments, activations="int12", isa=ISAS[0], threads=1)
