"""Call the native module with arguments near to valid ones: a call returns or raises, and the process lives.

    python -m tests.fuzz.native.arguments --count 100000 --seed 7

The valid calls are those of a tiny model and of a sampler, recorded while they run. `tests.fuzz.native` runs this with the
sanitizers, which find what would go unnoticed here.
"""

from __future__ import annotations

import argparse
import functools
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import attrs
import numpy as np

from tests.fuzz.parsers.search import Outcome, search
from tests.fuzz.parsers.target import Target
from tests.kit.engine.step_batches import Rows, step_batch
from tests.kit.model.native_models import ISAS, MIXED, SUPER_MIXED, block_shape, built_native, stored, super_shape
from tlserve.engine.sampling.native_sampler import NativeSampler, _tried_runs
from tlserve.model.decoder.native.model import NativeModel
from tlserve.model.decoder.numerics import Numerics
from tlserve.sampling_params import SamplingParams

REFUSALS = (ValueError, TypeError, BufferError, OverflowError, MemoryError)
NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 64, 255, 256, 257, 512, 1 << 15),
    *((1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 40, -(1 << 63), 1 << 63),
)
DTYPES = ("u1", "i1", "u2", "f2", "i4", "u4", "f4", "i8", "f8", "?", ">i4", ">f4", "c8", "O")
OTHERS: Sequence[Any] = (
    *(None, b"", b"\0" * 7, "x", 0, 1.5, [], (), {}, object(), "f32", "int8"),
    *(bytearray(64), memoryview(b"abcd"), np.float32(1)),
)


@attrs.frozen
class Call:
    """One valid call."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: dict[str, Any]


@functools.cache
def valid_calls() -> Sequence[Call]:
    """Return the calls that building and running tiny models and a sampler makes."""
    calls: list[Call] = []

    def recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            calls.append(Call(name, function, arguments, named))
            made = function(*arguments, **named)
            if name == "Model":
                return SimpleNamespace(forward=recorded("forward", made.forward))
            return SimpleNamespace(draw=recorded("draw", made.draw)) if name == "Sampler" else made

        return call

    real = built_native()
    module = cast(
        "Any",
        SimpleNamespace(
            **{name: recorded(name, getattr(real, name)) for name in ("Matrix", "Model", "Sampler", "multiply")}
        ),
    )
    for shape, kinds, numerics in (
        (block_shape(layers=1, context_tokens=64), MIXED, Numerics("int8", "f16")),
        (super_shape(layers=1, context_tokens=64), SUPER_MIXED, Numerics("int12", "f32")),
        (block_shape(layers=1, context_tokens=64, qkv_bias=True), MIXED, Numerics("f32", "f32")),
    ):
        model = NativeModel(module, shape.record(), stored(shape, kinds), numerics, isa=ISAS[0], threads=2)
        model.forward(step_batch(Rows([1, 2, 3], 0, [1]), Rows([7], 16, [0, 2])), model.new_kv_store(3, 16))
    matrix = next(call for call in calls if call.name == "Matrix")
    outputs, inputs = matrix.arguments[1:3]
    for activations in ("f32", "int8", "int12"):
        packed, x = real.Matrix(*matrix.arguments), np.ones((3, inputs), np.float32)
        module.multiply(packed, x, np.zeros((3, outputs), np.float32), activations, ISAS[0])
    sampler = NativeSampler(module, 300, 2)
    mask = np.full(-(-300 // 32), 0xFFFFFFFF, np.uint32)
    for index, sampling in enumerate(
        (SamplingParams(temperature=0.7, top_k=40, top_p=0.9, logit_bias=((7, 3.3),)), SamplingParams())
    ):
        sampler.draw(
            np.random.default_rng(0).normal(0, 3, (2, 300)).astype(np.float32), _tried_runs(index, sampling, mask)
        )
    return calls


def by_name() -> dict[str, list[Call]]:
    found: dict[str, list[Call]] = {}
    for call in valid_calls():
        found.setdefault(call.name, []).append(call)
    return found


# --- changed arguments ---------------------------------------------------------------------------------------------------


def near(rng: random.Random, value: Any) -> Any:
    """Return another value in the place of an argument."""
    if rng.random() < 0.1:
        return rng.choice(OTHERS)
    if isinstance(value, np.ndarray):
        return near_array(rng, value)
    if isinstance(value, bytes):
        return near_bytes(rng, value)
    if isinstance(value, bool) or value is None:
        return rng.choice((True, False, None))
    if isinstance(value, int):
        return rng.choice(NUMBERS) if rng.random() < 0.7 else value + rng.choice((-1, 1, 8))
    if isinstance(value, float):
        return rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf"), -0.0))
    if isinstance(value, str):
        return rng.choice((*ISAS, "f32", "int8", "int12", "", "x", "\0"))
    if isinstance(value, dict) and value:
        name = rng.choice(list(value))
        kept = {key: inner for key, inner in value.items() if key != name or rng.random() < 0.9}
        return {**kept, name: near(rng, value[name])} if name in kept else kept
    if isinstance(value, (list, tuple)) and value:
        index = rng.randrange(len(value))
        parts = [*value[:index], *([near(rng, value[index])] if rng.random() < 0.85 else []), *value[index + 1 :]]
        return type(value)(parts)
    return rng.choice(OTHERS)


def near_array(rng: random.Random, value: np.ndarray) -> Any:
    """Return an array of another shape, type, layout or content."""
    if value.dtype.names:
        return np.frombuffer(near_bytes(rng, value.tobytes()), np.uint8)
    kind = rng.randrange(8)
    if kind == 0:
        with np.errstate(all="ignore"):  # what the numbers become does not matter
            return value.astype(rng.choice(DTYPES[:-1]))
    if kind == 1:
        return (
            np.concatenate([value, value])[: len(value) + rng.choice((-1, 1, 2))]
            if value.ndim and len(value)
            else value
        )
    if kind == 2:
        return np.repeat(value, 2, axis=-1)[..., ::2] if value.ndim else value
    if kind == 3:
        return value[:0] if rng.random() < 0.5 else value.reshape(-1)
    if kind == 4:
        frozen = value.copy()
        frozen.flags.writeable = False
        return frozen
    if kind == 5:
        return value[::-1] if rng.random() < 0.5 else np.asfortranarray(value)
    if kind == 6:
        return value[None] if rng.random() < 0.5 else value.T
    changed = value.copy()
    if changed.size and changed.dtype.kind in "iuf":
        flat = changed.reshape(-1)
        number = rng.choice(NUMBERS)
        least, most = (
            (-3e38, 3e38) if changed.dtype.kind == "f" else (np.iinfo(changed.dtype).min, np.iinfo(changed.dtype).max)
        )
        flat[rng.randrange(flat.size)] = min(max(number, least), most)
    return changed


def near_bytes(rng: random.Random, value: bytes) -> bytes:
    if rng.random() < 0.4:
        return value[: rng.randrange(len(value) + 1)] + rng.randbytes(rng.choice((0, 1, 8)))
    changed = bytearray(value)
    for _ in range(rng.choice((1, 1, 8))):
        if changed:
            at = rng.randrange(len(changed))
            changed[at : at + 8] = rng.choice((bytes(8), b"\xff" * 8, rng.randbytes(8), b"\x7f" + b"\xff" * 7))[
                : len(changed) - at
            ]
    return bytes(changed)


def wrong_call(rng: random.Random) -> Call:
    """Return a valid call with one or two arguments changed; each kind of call is as likely as the others."""
    call = rng.choice(by_name()[rng.choice(sorted(by_name()))])
    arguments, named = list(call.arguments), dict(call.named)
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.choice([*range(len(arguments)), *named])
        if isinstance(place, int):
            arguments[place] = near(rng, arguments[place])
        elif place == "threads":
            named[place] = rng.choice((0, -1, 1, 3, 5000, 1 << 40))
        else:
            named[place] = near(rng, named[place])
    return attrs.evolve(call, arguments=tuple(arguments), named=named)


def use_call(call: Call) -> None:
    """Make the call; what was built of changed parts is used and then released."""
    made = call.function(*call.arguments, **call.named)
    if call.name == "Model":
        forward = next(other for other in valid_calls() if other.name == "forward")
        made.forward(*forward.arguments)


TARGET = Target(
    name="native", make=wrong_call, use=use_call, refusals=REFUSALS, cpu_s=60.0, memory_bytes=1 << 40, quiet=False
)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.native.arguments", description="Fuzz the arguments of the native module."
    )
    parser.add_argument("--count", type=int, default=20_000, help="calls (default 20000)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args(words)
    outcome: Outcome = search(TARGET, arguments.seed, arguments.count)
    for fault in outcome.faults:
        print(fault)
    print(f"{outcome.inputs} calls in {outcome.seconds:.0f} s: {len(outcome.faults)} faults")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
