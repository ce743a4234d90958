"""The block rules pass on a sound engine and fail on each way to break one."""

from collections.abc import Callable

import pytest

from tests.kit.engine.block_invariants import check_blocks
from tests.kit.engine.hash_model import HashModel
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.generation import GenerationRequest


@pytest.fixture
def engine() -> Engine:
    made = Engine(HashModel(), EngineConfig(block_size=4, kv_blocks=20))
    made.add_request(GenerationRequest(prompt=tuple(range(20)), max_tokens=1, seed=0))
    made.step()
    made.add_request(GenerationRequest(prompt=tuple(range(10)), max_tokens=9, seed=0))
    made.step()
    check_blocks(made)
    return made


def leak(engine: Engine) -> None:
    engine.kv.pool.take(1)


def share_without_counting(engine: Engine) -> None:
    table = engine.scheduler.running[0].table
    table.blocks.append(next(iter(engine.kv.idle)))
    table.changed()


def forget_a_cached_block(engine: Engine) -> None:
    engine.kv.idle.popitem()


def free_a_held_block(engine: Engine) -> None:
    engine.kv.pool.put_back(engine.scheduler.running[0].table.blocks[-1])


def evict_a_parent_first(engine: Engine) -> None:
    engine.kv.idle.move_to_end(next(iter(engine.kv.idle)))


def keep_an_old_array(engine: Engine) -> None:
    engine.scheduler.running[0].table.as_array()[0] += 1


@pytest.mark.spec("ENG-20")
@pytest.mark.parametrize(
    "damage",
    [leak, share_without_counting, forget_a_cached_block, free_a_held_block, evict_a_parent_first, keep_an_old_array],
)
def test_a_broken_rule_is_detected(engine: Engine, damage: Callable[[Engine], None]) -> None:
    damage(engine)
    with pytest.raises(AssertionError):
        check_blocks(engine)
