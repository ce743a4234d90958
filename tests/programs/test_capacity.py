"""Memory becomes blocks of keys and values."""

import attrs
import pytest

from tlserve.config.settings import EngineSettings
from tlserve.errors import SettingsError
from tlserve.kernels.interface import ModelSpec
from tlserve.programs.local_models import plan_kv_blocks

SPEC = ModelSpec(
    architecture="llama",
    vocabulary_size=256,
    hidden_size=32,
    context_tokens=1024,
    kv_bytes_per_token=1000,
    kernels="none",
    numerics="none",
)
SETTINGS = EngineSettings(block_size=16, max_num_seqs=4)


def test_by_default_a_quarter_of_the_machine_is_used():
    assert plan_kv_blocks(SETTINGS, SPEC, available_bytes=64_000 * 10) == 10


def test_no_more_memory_is_used_than_full_contexts_need():
    assert plan_kv_blocks(SETTINGS, SPEC, available_bytes=1 << 40) == 4 * 1024 // 16
    assert plan_kv_blocks(attrs.evolve(SETTINGS, context_tokens=100), SPEC, 1 << 40) == 4 * 7


def test_the_setting_wins_over_the_machine():
    assert plan_kv_blocks(attrs.evolve(SETTINGS, kv_memory_bytes=160_000), SPEC, available_bytes=0) == 10


def test_a_setting_without_space_for_a_block_is_refused_with_its_size():
    with pytest.raises(SettingsError, match="16000 bytes"):
        plan_kv_blocks(attrs.evolve(SETTINGS, kv_memory_bytes=15_999), SPEC, 0)


def test_a_machine_with_little_memory_still_gets_one_block():
    assert plan_kv_blocks(SETTINGS, SPEC, available_bytes=0) == 1


def test_a_model_without_attention_is_only_counted():
    assert plan_kv_blocks(SETTINGS, attrs.evolve(SPEC, kv_bytes_per_token=0), 0) == 4 * 1024 // 16
