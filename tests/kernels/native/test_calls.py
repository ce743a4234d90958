"""The valid arguments of the native code: all others raise, and nothing crashes."""

import gc
import threading
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.engine.step_batches import Rows, run_whole, step_batch
from tests.kit.model.native_models import F32, ISAS, Q4_1, Q8_0, block_shape, native, stored
from tlserve.kernels.native import load_native
from tlserve.model.decoder.kv_precision import PositionStore
from tlserve.model.decoder.native.form import NativeParts
from tlserve.model.decoder.native.model import NativeKvStore

SHAPE = block_shape(layers=1, context_tokens=64)


@pytest.fixture(scope="module")
def model():
    return native(SHAPE, stored(SHAPE))


def good_batch():
    return step_batch(Rows([1, 2, 3], 0, [1]), Rows([7], 16, [0, 2]))


INTS = np.int32
REASON = r"\w{3}"  # some words; their text is not part of a contract
WRONG_VALUES = {
    "a token below 0": {"tokens": INTS([1, -1, 3, 7])},
    "a token beyond the vocabulary": {"tokens": INTS([1, 256, 3, 7])},
    "a gap in the positions": {"positions": INTS([0, 2, 3, 16])},
    "a negative position": {"positions": INTS([-1, 0, 1, 16])},
    "a position beyond the context": {"positions": INTS([0, 1, 2, 64])},
    "a table too short": {"positions": INTS([0, 1, 2, 40])},
    "rows that do not end": {"row_starts": INTS([0, 3, 5])},
    "rows that descend": {"row_starts": INTS([0, 5, 4])},
    "an empty sequence": {"row_starts": INTS([0, 0, 4])},
    "no sequence": {"row_starts": INTS([0])},
    "fewer tokens than positions": {"tokens": INTS([1, 2, 3])},
    "no rows": {"tokens": INTS([]), "positions": INTS([])},
    "a block beyond the store": {"block_tables": (INTS([3]), INTS([0, 2]))},
    "a negative block": {"block_tables": (INTS([1]), INTS([-1, 2]))},
    "a table missing": {"block_tables": (INTS([1, 0, 2]),)},
    "an empty table": {"block_tables": (INTS([]), INTS([0, 2]))},
    "a logit row beyond the rows": {"logit_rows": INTS([4])},
    "a negative logit row": {"logit_rows": INTS([-1])},
    "a logit row twice": {"logit_rows": INTS([1, 1])},
    "more logit rows than rows": {"logit_rows": INTS([0, 1, 2, 3, 3])},
    "logit rows that descend": {"logit_rows": INTS([2, 1])},
    "hidden rows that descend": {"hidden_rows": INTS([2, 1])},
    "a hidden row beyond the rows": {"hidden_rows": INTS([4])},
}


@pytest.mark.spec("KER-13")
@pytest.mark.parametrize("name", WRONG_VALUES)
def test_a_step_with_wrong_values_is_refused(model, name):
    with pytest.raises(ValueError, match=REASON):
        model.forward(attrs.evolve(good_batch(), **WRONG_VALUES[name]), model.new_kv_store(3, 16))


WRONG_TYPES = {
    "long tokens": {"tokens": np.array([1, 2, 3, 7], np.int64)},
    "real tokens": {"tokens": np.array([1, 2, 3, 7], np.float32)},
    "unsigned rows": {"logit_rows": np.array([1], np.uint32)},
    "a list": {"tokens": [1, 2, 3, 7]},
    "long tables": {"block_tables": (np.array([1]), np.array([0, 2]))},
}


@pytest.mark.spec("KER-13")
@pytest.mark.parametrize("name", WRONG_TYPES)
def test_a_step_with_arrays_of_a_wrong_type_is_refused(model, name):
    with pytest.raises(TypeError):
        model.forward(attrs.evolve(good_batch(), **WRONG_TYPES[name]), model.new_kv_store(3, 16))


def store_of(precision="f16", **changes):
    return NativeKvStore(attrs.evolve(SHAPE, **changes).record().attentions(), 3, 16, precision)


def test_an_array_with_gaps_is_refused(model):
    with pytest.raises((ValueError, BufferError)):
        model.forward(attrs.evolve(good_batch(), tokens=np.arange(8, dtype=np.int32)[::2]), model.new_kv_store(3, 16))


def test_a_store_of_another_model_is_refused(model):
    foreign = PositionStore([(2, 16)], blocks=3, block_size=16, precision="f16")
    with pytest.raises(TypeError):
        model.forward(good_batch(), foreign)
    with pytest.raises(ValueError, match=REASON):
        model.forward(good_batch(), store_of(layers=2))
    with pytest.raises((ValueError, TypeError)):
        model.forward(good_batch(), store_of("f32"))


@pytest.mark.spec("KER-13")
def test_a_refused_step_writes_nothing_and_the_next_one_runs(model):
    kv = model.new_kv_store(3, 16)
    with pytest.raises(ValueError, match=REASON):
        model.forward(attrs.evolve(good_batch(), hidden_rows=INTS([4])), kv)
    assert not kv.keys.any()
    assert np.isfinite(model.forward(good_batch(), kv).logits).all()
    assert kv.keys.any()


@pytest.mark.spec("KER-13")
@given(data=st.data())
@settings(max_examples=300, database=None)
def test_a_step_of_any_numbers_either_runs_or_is_refused(model, data):
    numbers = st.integers(-3, 70)
    fields: dict[str, Any] = {}
    for field in ("tokens", "positions", "row_starts", "logit_rows", "hidden_rows"):
        if data.draw(st.booleans(), label=f"change {field}"):
            fields[field] = INTS(data.draw(st.lists(numbers, max_size=6), label=field))
    if data.draw(st.booleans(), label="change tables"):
        tables = data.draw(st.lists(st.lists(st.integers(-1, 4), max_size=3), min_size=1, max_size=3), label="tables")
        fields["block_tables"] = tuple(INTS(table) for table in tables)
    try:
        model.forward(attrs.evolve(good_batch(), **fields), model.new_kv_store(3, 16))
    except (ValueError, TypeError):
        return


MATRICES = {
    "an unknown kind": (99, 4, 32, 128),
    "part of a block": (Q4_1, 4, 33, 80),
    "too few bytes": (Q8_0, 4, 32, 4 * 34 - 1),
    "too many bytes": (F32, 4, 32, 4 * 128 + 1),
    "no outputs": (F32, 0, 32, 0),
    "negative outputs": (F32, -1, 32, 128),
    "no inputs": (F32, 4, 0, 0),
    "more than fits": (F32, 1 << 40, 1 << 40, 128),
}


@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_that_cannot_be_packed_is_refused(name):
    kind, outputs, inputs, size = MATRICES[name]
    with pytest.raises(ValueError, match=REASON):
        load_native().Matrix(kind, outputs, inputs, np.zeros(size, np.uint8))


def test_a_product_of_wrong_arrays_is_refused():
    module = load_native()
    matrix = module.Matrix(F32, 4, 32, np.zeros(4 * 128, np.uint8))
    x, out = np.zeros((2, 32), np.float32), np.zeros((2, 4), np.float32)
    wrong = [
        (matrix, x[:, :31].copy(), out, "f32", ISAS[0]),
        (matrix, x, out[:1].copy(), "f32", ISAS[0]),
        (matrix, x, out, "int8", ISAS[0]),
        (matrix, x, out, "int12", ISAS[0]),
        (matrix, x, out, "int9", ISAS[0]),
        (matrix, x, out, "f32", "abacus"),
    ]
    for arguments in wrong:
        with pytest.raises(ValueError, match=REASON):
            module.multiply(*arguments)
    out.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        module.multiply(matrix, x, out, "f32", ISAS[0])
    with pytest.raises(TypeError):
        module.multiply(x, x, out, "f32", ISAS[0])


@pytest.mark.parametrize(
    "change", [{"heads": 5}, {"head_size": 2000}, {"kv_heads": 0}, {"hidden": 96}, {"rotated": 18}]
)
def test_sizes_that_do_not_fit_the_weights_are_refused(change):
    tensors = stored(SHAPE)
    with pytest.raises((ValueError, TypeError, ZeroDivisionError)):
        native(attrs.evolve(SHAPE, **change), tensors)


def of_attention(**changes):
    return lambda blocks: blocks[0]["attention"].update(changes)


def of_feed_forward(**changes):
    return lambda blocks: blocks[1]["feed_forward"].update(changes)


BLOCK_CHANGES = {
    "without a matrix": lambda blocks: blocks[1]["feed_forward"].pop("gate"),
    "without a bias, not even None": lambda blocks: blocks[0]["attention"].pop("q_bias"),
    "without a window": lambda blocks: blocks[0]["attention"].pop("window"),
    "without a scale": lambda blocks: blocks[0].pop("scale"),
    "with a part of another name": of_feed_forward(gate_norm=None),
    "with nothing in it": lambda blocks: blocks[1].update(feed_forward=None),
    "with a norm that is a number": lambda blocks: blocks[0].update(pre=1.0),
    "with a norm without a weight": lambda blocks: blocks[0].update(pre=(False, 1e-5, None, None)),
    "with a norm of another size": lambda blocks: blocks[0].update(pre=(False, 1e-5, np.ones(63, np.float32), None)),
    "with attention that is a list": lambda blocks: blocks[0].update(attention=[]),
    "with an array as a matrix": of_feed_forward(up=np.zeros((96, 64), np.float32)),
    "with the matrix of another part": lambda blocks: of_feed_forward(down=blocks[1]["feed_forward"]["up"])(blocks),
    "with an unknown activation": of_feed_forward(activation=99),
    "with no width": of_feed_forward(width=0),
    "with a negative window": of_attention(window=-1),
    "with words as a window": of_attention(window="all"),
    "with no heads": of_attention(heads=0),
    "with heads too wide": of_attention(head_size=2000),
    "with a rotation without sines": of_attention(sin=None),
    "with a rotation of few positions": of_attention(cos=np.ones(63, np.float32), sin=np.ones(63, np.float32)),
    "with a rotation wider than a head": of_attention(cos=np.ones(64 * 9, np.float32), sin=np.ones(64 * 9, np.float32)),
    "with scales of few positions": of_attention(query_scales=np.ones(63, np.float32)),
    "with one norm for many heads": of_attention(per_head=True, q_norm=(False, 1e-5, np.ones(16, np.float32), None)),
}


@pytest.mark.spec("KER-13")
@pytest.mark.parametrize("name", BLOCK_CHANGES)
def test_a_block_with_wrong_parts_is_refused(name, monkeypatch):
    whole = NativeParts.blocks

    def changed(parts):
        blocks = whole(parts)
        BLOCK_CHANGES[name](blocks)
        return blocks

    monkeypatch.setattr(NativeParts, "blocks", changed)
    with pytest.raises((ValueError, TypeError, BufferError)):
        native(SHAPE, stored(SHAPE))


@pytest.mark.spec("KER-13")
def test_a_model_without_attention_is_refused(monkeypatch):
    whole = NativeParts.blocks
    monkeypatch.setattr(NativeParts, "blocks", lambda parts: whole(parts)[1:])
    with pytest.raises(ValueError, match="attention"):
        native(SHAPE, stored(SHAPE))


def test_threads_beyond_the_bound_and_unknown_instruction_sets_are_refused():
    with pytest.raises(ValueError, match=REASON):
        native(SHAPE, stored(SHAPE), threads=5000)
    with pytest.raises(ValueError, match=REASON):
        native(SHAPE, stored(SHAPE), isa="abacus")


@pytest.mark.spec("KER-14")
def test_logits_that_are_still_held_are_not_overwritten_by_the_next_step(model):
    first = run_whole(model, [1, 2, 3])
    before = first.logits.copy()
    second = run_whole(model, [4, 5, 6])
    assert np.array_equal(first.logits, before)
    assert not np.shares_memory(first.logits, second.logits)


def test_logits_that_are_no_longer_held_reuse_their_memory(model):
    where = run_whole(model, [1, 2, 3]).logits.ctypes.data
    assert run_whole(model, [4, 5, 6]).logits.ctypes.data == where


@pytest.mark.spec("KER-15")
def test_a_second_simultaneous_step_is_refused_and_the_model_continues():
    shape = block_shape(context_tokens=512)
    busy = native(shape, stored(shape), threads=2)
    expected = run_whole(busy, range(200)).logits.copy()
    results, begin = [], threading.Barrier(2)

    def run():
        begin.wait()
        for _ in range(20):
            try:
                results.append(run_whole(busy, range(200)).logits.copy())
            except RuntimeError as error:
                results.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {r for r in results if isinstance(r, str)} <= {"a step of this model is already running"}
    assert all(np.array_equal(r, expected) for r in results if not isinstance(r, str))


@pytest.mark.spec("KER-15")
def test_models_come_and_go_with_their_threads():
    def tasks():
        return len(list(Path("/proc/self/task").iterdir()))

    before = tasks()
    for _ in range(20):
        run_whole(native(SHAPE, stored(SHAPE), threads=3), [1, 2, 3])
    gc.collect()
    assert tasks() < before + 20  # some threads of numpy and of the last pool can still be ending
