"""Each stand-in returns what the processor's instruction returns, where this processor has it."""

import re

import pytest

from tests.kernels.stand_ins.build import FOLDER, NATIVE, digests
from tests.kit.model.native_models import ISAS

AVX2 = ("-DAVX2", "-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-DAVX512", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
REAL = {
    "amx": (*AVX512, "-DAMX", "-mamx-tile", "-mamx-int8"),
    "avx512vnni": AVX512,
    "avx2": AVX2,
    "avxvnni": (*AVX2, "-DAVX_VNNI", "-mavxvnni"),
    "neon": ("-DNEON",),
    "neondot": ("-DNEON", "-DDOTPROD", "-march=armv8.2-a+dotprod"),
}
INSTRUCTION = re.compile(r"\b(?:_tile_[a-z]+|(?:_mm\d*|v[a-z]+\d?q?(?:_[a-z]+)*)_\w*\d\w*)\b")


@pytest.mark.slow
@pytest.mark.spec("KER-39")
@pytest.mark.parametrize("isa", ISAS)
def test_portable_instructions_have_the_results_of_the_real_ones(isa, tmp_path):
    flags = REAL[isa]
    real = digests(tmp_path, "real", flags)
    assert len(real) > 30
    assert digests(tmp_path, "stand_ins", [flag for flag in flags if flag.startswith("-D")] + [f"-I{FOLDER}"]) == real


def test_every_instruction_of_the_kernels_is_among_the_cases():
    cases = set(INSTRUCTION.findall((FOLDER / "cases.c").read_text()))
    sources = [*NATIVE.glob("*.h"), *NATIVE.glob("*.c")]
    used = {name for path in sources for name in INSTRUCTION.findall(path.read_text())}
    assert len(used) > 90
    assert used - cases == set()
