"""gpt-oss in MXFP4: the model of the same numbers in float32, from safetensors and from GGUF, and refusals."""

import attrs
import gguf
import numpy as np
import pytest
import safetensors.numpy

from tests.kit.engine.schedules import same_bits
from tests.kit.engine.step_batches import run_whole
from tests.kit.model.described import DescribedCase, described_cases, write_described
from tests.kit.model.described_gguf import write_described_gguf
from tlserve.errors import ModelRefused
from tlserve.kernels.choose import KernelChoice
from tlserve.model.load import load_model

CASE = described_cases()["gpt_oss"]
CONFIG = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
EXACT = KernelChoice(kernels="reference", kv_precision="f32", activations="f32")
TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def drawn_blocks(name, experts, rows, inputs):
    """Return blocks and scales as a checkpoint has them, and their numbers (experts, rows, inputs)."""
    random = np.random.default_rng(len(name))
    blocks = random.integers(0, 256, (experts, rows, inputs // 32, 16), np.uint8)
    scales = random.integers(122, 126, (experts, rows, inputs // 32), np.uint8)
    pairs = np.stack([TWICE[blocks & 15], TWICE[blocks >> 4]], axis=-1).reshape(experts, rows, -1, 32)
    return (
        blocks,
        scales,
        (pairs * np.ldexp(np.float32(1), scales.astype(int) - 128)[..., None]).reshape(experts, rows, -1),
    )


def tensors():
    """Return the tensors of the case twice: with its experts in MXFP4, and with the same numbers in float32."""
    packed, plain = dict(CASE.tensors()), dict(CASE.tensors())
    for name, tensor in CASE.tensors().items():
        if name.endswith(("gate_up_proj", "experts.down_proj")):
            experts, inputs, rows = tensor.shape
            blocks, scales, numbers = drawn_blocks(name, experts, rows, inputs)
            del packed[name]
            packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            plain[name] = np.ascontiguousarray(numbers.swapaxes(1, 2))
    return packed, plain


def written(directory, given, **config):
    path = write_described(directory, CASE, **config)
    safetensors.numpy.save_file(given, path / "model.safetensors")
    return path


def logits(path, choice=EXACT):
    return run_whole(load_model(path, threads=2, kernels=choice).model, CASE.ids).logits


@pytest.mark.spec("MOD-99")
def test_experts_in_four_bits_are_the_model_of_their_numbers(tmp_path):
    packed, plain = tensors()
    four = written(tmp_path / "four", packed, **CONFIG)
    assert same_bits(logits(four), logits(written(tmp_path / "wide", plain)))


@pytest.mark.spec("MOD-99", "KER-42")
def test_experts_in_four_bits_stay_so_and_have_the_bits_of_numpy_natively(tmp_path):
    four = written(tmp_path / "four", tensors()[0], **CONFIG)
    native, numpy = (KernelChoice(kernels=kernels) for kernels in ("native", "reference"))
    assert same_bits(logits(four, native), logits(four, numpy))
    wide = load_model(written(tmp_path / "wide", tensors()[1]), kernels=native)
    assert load_model(four, kernels=native).weights_bytes < 0.6 * wide.weights_bytes


@attrs.frozen(kw_only=True, eq=False)
class WideCase(DescribedCase):
    """The case with other numbers."""

    numbers: dict[str, np.ndarray]

    def tensors(self):
        return self.numbers


@pytest.mark.spec("MOD-99")
def test_the_same_in_gguf_gives_the_same(tmp_path):
    packed, plain = tensors()
    case = WideCase(**attrs.asdict(CASE, recurse=False), numbers=plain)
    wide = write_described_gguf(tmp_path / "wide.gguf", case)
    four = write_described_gguf(tmp_path / "four.gguf", case, experts=gguf.GGMLQuantizationType.MXFP4)
    assert same_bits(logits(wide), logits(written(tmp_path / "files", packed, **CONFIG)))
    assert four.stat().st_size < 0.6 * wide.stat().st_size
    assert same_bits(logits(four), logits(wide))


@pytest.mark.spec("MOD-25", "MOD-50")
def test_blocks_without_fitting_scales_and_other_quantisations_are_refused(tmp_path):
    packed, _ = tensors()
    name = "model.layers.0.mlp.experts.down_proj_scales"
    with pytest.raises(ModelRefused, match="are not blocks and their scales"):
        load_model(written(tmp_path / "a", {**packed, name: packed[name][:1]}, **CONFIG))
    with pytest.raises(ModelRefused, match="are not blocks and their scales"):
        load_model(written(tmp_path / "b", {n: t for n, t in packed.items() if n != name}, **CONFIG))
    with pytest.raises(ModelRefused, match="has the type I8, not U8"):
        load_model(written(tmp_path / "c", {**packed, name: packed[name].view(np.int8)}, **CONFIG))
    with pytest.raises(ModelRefused, match="quantization_config is not served; served: quant_method mxfp4"):
        load_model(written(tmp_path / "d", packed, quantization_config={"quant_method": "fp8"}))
