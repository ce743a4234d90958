"""Which kernels are chosen: by the setting, by the built extension, and by the test at the start."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from tests.kit.http.http_calls import get
from tests.kit.model.llama_shape import STORAGE
from tests.kit.model.native_models import ISAS, Q4_1, QUANTISED, block_shape, stored
from tests.kit.model.tiny_models import ArraySource, tiny_tensors, write_tiny_gguf
from tlserve.config.settings import KERNELS
from tlserve.errors import SettingsError
from tlserve.kernels import choose
from tlserve.kernels.choose import KernelChoice, choose_kernels
from tlserve.kernels.native import load_native
from tlserve.model.decoder import build as decoder_build
from tlserve.model.decoder.build import build_decoder
from tlserve.model.decoder.native.probe import disagreement, random_matrix
from tlserve.model.decoder.numerics import Numerics
from tlserve.model.decoder.stored_slots import StoredSlots
from tlserve.model.loaded_model import LoadOptions
from tlserve.testing import serve_in_thread


class BlockSource(ArraySource):
    """The tiny llama with matrices of random Q4_1 blocks in place of its arrays."""

    def stored(self, name):
        outputs, inputs = self.arrays[name].shape
        return Q4_1, random_matrix(np.random.default_rng(len(name)), Q4_1, outputs, inputs).rows


@pytest.fixture
def source():
    return BlockSource(tiny_tensors(block_shape()))


def build_with(source, choice):
    decoder = block_shape().record(tied=False)
    return build_decoder(
        decoder, StoredSlots(source, decoder, STORAGE), lambda: "test", LoadOptions(threads=1, kernels=choice)
    ).spec


def build(source, **wishes):
    return build_with(source, KernelChoice(**wishes))


@pytest.mark.spec("KER-10", "KER-30")
def test_auto_takes_native_and_reference_takes_numpy_with_the_same_numerics(source):
    native, numpy = build(source), build(source, kernels="reference")
    assert native.kernels == f"native ({ISAS[0]}, int12 activations, 1 thread)"
    assert numpy.kernels == "reference (numpy, int12 activations)"
    assert native.numerics == numpy.numerics


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_of_this_machine_can_be_requested(source, isa):
    assert isa in build(source, kernels="native", isa=isa).kernels


@pytest.mark.spec("KER-38")
def test_the_setting_names_an_instruction_set_and_the_start_says_which_one_computes(tmp_path):
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    with serve_in_thread(path, settings={"engine.kernels": ISAS[-1], "engine.threads": 1}) as server:
        (named,) = get(server.address, "/healthz").json["kernels"].values()
        assert named.startswith(f"native ({ISAS[-1]}, ")


@pytest.mark.spec("KER-38")
def test_an_instruction_set_that_the_processor_lacks_is_refused_with_those_it_has(source):
    missing = next(name for name in KERNELS[3:] if name not in ISAS)
    choice = choose_kernels(missing)
    with pytest.raises(SettingsError) as refused:
        build_with(source, choice)
    assert str(refused.value) == (
        f'engine.kernels = "{missing}": this machine or this build lacks these instructions; it has {", ".join(ISAS)}'
    )


@pytest.mark.spec("KER-12")
def test_activations_follow_the_weights_unless_they_are_set(source):
    assert "f32 activations" in build(ArraySource(tiny_tensors(block_shape()))).kernels
    assert "int12 activations" in build(source).kernels
    assert "int8 activations" in build(source, activations="int8").kernels
    assert "f32 activations" in build(source, activations="f32").kernels
    assert build(source, activations="f32", kernels="reference").kernels.startswith("reference (numpy, ")


@pytest.mark.spec("KER-10", "KER-30")
def test_without_the_extension_auto_warns_and_native_is_refused(source, monkeypatch, caplog):
    monkeypatch.setattr(choose, "native_isas", lambda: ())
    assert build(source).kernels == "reference (numpy, int12 activations)"
    assert "native kernels were not built" in caplog.text
    assert "numpy computes, with the same answers, slowly" in caplog.text
    with pytest.raises(SettingsError, match="were not built"):
        build(source, kernels="native")


@pytest.mark.spec("KER-10")
def test_without_the_extension_f32_activations_have_the_numerics_of_native_kernels(source, monkeypatch):
    native = build(source, activations="f32")
    monkeypatch.setattr(choose, "native_isas", lambda: ())
    assert build(source, activations="f32").numerics == native.numerics


def test_a_blas_that_adds_in_another_order_is_said_where_it_makes_a_model_slow(source, monkeypatch, caplog):
    monkeypatch.setattr(decoder_build, "blas_adds_in_order", lambda: False)
    build(source, kernels="reference")
    assert caplog.text == ""
    build(source, kernels="reference", activations="f32")
    assert "f32 products are emulated" in caplog.text


@pytest.mark.parametrize("activations", QUANTISED)
def test_native_and_numpy_agree_on_every_kind_of_the_start_test(caplog, activations):
    caplog.set_level(logging.WARNING)
    for isa in ISAS:
        numerics = Numerics(activations, "f16")
        assert disagreement(load_native(), block_shape().record(), stored(block_shape()), numerics, isa) == ""
    assert caplog.text == ""


def wrong_products():
    """Return the extension with a product that is off by one unit in the last place."""
    module = load_native()

    def multiply(matrix, x, out, activations, isa):
        module.multiply(matrix, x, out, activations, isa)
        out.view(np.int32)[0, 0] += 1

    return SimpleNamespace(Matrix=module.Matrix, Model=module.Model, multiply=multiply)


def wrong_steps():
    """Return the extension with a model whose last norm uses another epsilon than the given one."""
    module = load_native()

    def model(**given):
        is_layer, epsilon, scale, bias = given["norm"]
        return module.Model(**given | {"norm": (is_layer, epsilon + 1e-3, scale, bias)})

    return SimpleNamespace(Matrix=module.Matrix, Model=model, multiply=module.multiply)


@pytest.mark.spec("KER-11", "KER-31")
@pytest.mark.parametrize(
    ("broken", "named"), [(wrong_products, "GGML type 3"), (wrong_steps, "a step of a small model")]
)
def test_kernels_that_disagree_are_named_and_not_used(source, monkeypatch, caplog, broken, named):
    monkeypatch.setattr(decoder_build, "load_native", broken)
    assert build(source).kernels == "reference (numpy, int12 activations)"
    assert named in caplog.text
    with pytest.raises(SettingsError, match=named):
        build(source, kernels="native")


def test_the_precision_of_the_store_decides_the_bytes_of_a_token(tmp_path):
    from tlserve.model.load import load_model

    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    sizes = {
        p: load_model(path, kernels=KernelChoice(kv_precision=p)).model.spec.kv_bytes_per_token for p in ("f16", "f32")
    }
    assert sizes == {"f16": 2 * 2 * 2 * 2 * 16, "f32": 2 * 4 * 2 * 2 * 16}
