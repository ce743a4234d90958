"""The native sampler gives the tokens and log-probabilities of numpy's, to the bit. Without the extension these tests fail."""

import math
import random
import struct

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.kit.engine.engine_runs import random_edits
from tlserve.engine.sampling import native_sampler
from tlserve.engine.sampling.constraint import ConstraintFailed
from tlserve.engine.sampling.interface import NotSampled, SamplerRun
from tlserve.engine.sampling.logit_edits import EDIT, open_edits
from tlserve.engine.sampling.native_sampler import VERSION, NativeSampler, _pack_chain, _pack_row, make_sampler
from tlserve.engine.sampling.sampler import NumpySampler
from tlserve.generation import GenerationRequest
from tlserve.kernels.native import load_native
from tlserve.sampling_params import FILTERS, SamplingParams

NATIVE = load_native()
SIZES = [1, 2, 31, 33, 61, 300, 1024, 1025, 3000]
TRUTH = NumpySampler()
LOWEST, HIGHEST = -3.4028235e38, 3.4028235e38


def bits(drawn):
    """Return draws so that equal means equal bits, and faults by their kind."""
    return [([_draw_bits(draw) for draw in run.draws], type(run.fault)) for run in drawn]


def _draw_bits(draw):
    tops = [(t.token, t.logprob.hex()) for t in draw.top]
    return draw.token, draw.logprob and draw.logprob.hex(), tops, None if draw.mu is None else draw.mu.hex()


def agree(logits, runs, threads=1, widest_bits=512, module=NATIVE):
    native, before = NativeSampler(module, logits.shape[1], threads, widest_bits=widest_bits), logits.tobytes()
    ours = bits(native.draw(logits, runs))
    assert logits.tobytes() == before
    assert ours == bits(TRUTH.draw(logits, runs))
    return ours


def request(seed=0, choice=0, logprobs=None, **fields):
    return GenerationRequest(
        prompt=(1,), max_tokens=8, seed=seed, choice=choice, logprobs=logprobs, sampling=SamplingParams(**fields)
    )


def open_at(asked, rng, size):
    """Return the edits of a random prompt and answer."""
    prompt, answer = (tuple(rng.choices(range(size), k=rng.randrange(200))) for _ in "ab")
    return open_edits(attrs.evolve(asked, prompt=prompt, emitted=answer))


def mask_of(rng, size):
    """Return a mask that can be shorter or longer than the vocabulary needs, and can allow nothing."""
    words = max(1, -(-size // 32) + rng.choice([0, 0, 0, 1, -1]))
    dense = rng.choice([0.01, 0.5, 1.0])
    flags = np.array([rng.random() < dense for _ in range(32 * words)], np.uint8)
    return np.packbits(flags, bitorder="little").view(np.uint32)


def random_row(rng, size):
    """Return logits of various kinds: smooth, full of ties, far apart, some infinite or not a number."""
    values = np.array([rng.gauss(0, 3) for _ in range(size)], np.float32)
    kind = rng.choice(["plain", "ties", "equal", "wide", "minus infinity", "wrong", "zeros", "rising"])
    if kind == "ties":
        values = np.round(values)
    elif kind == "equal":
        values[:] = values[0]
    elif kind == "wide":
        values = np.array(
            [rng.choice([LOWEST, HIGHEST, 1e30, -1e30, 1e-40, -1e-40, 0.0, v]) for v in values], np.float32
        )
    elif kind == "minus infinity":
        values[[rng.random() < 0.9 for _ in values]] = -math.inf
    elif kind == "wrong":
        values[rng.randrange(size)] = rng.choice([math.nan, math.inf, -math.nan])
    elif kind == "zeros":
        values = np.array([rng.choice([0.0, -0.0]) for _ in values], np.float32)
    elif kind == "rising":
        values.sort()
    return values


def random_request(rng, size):
    return request(
        **random_edits(rng, size),
        seed=rng.choice([0, -1, 2**64 - 1, rng.randrange(2**64)]),
        choice=rng.choice([0, 1, 2**40]),
        logprobs=rng.choice([None, 0, 1, 5, 20, 100]),
        temperature=rng.choice([0.0, 1.0, 1.0, 0.3, 1.7, 5e-324, 1e-3, 2.0, 1e300]),
        top_k=rng.choice([0, 0, 1, 2, 40, 1000, 2**31]),
        top_p=rng.choice([1.0, 1.0, 0.9, 0.5, 0.999, 1e-9, 1 - 2**-53, 5e-324]),
        min_p=rng.choice([0.0, 0.0, 0.1, 1.0, 1e-300]),
    )


def random_run(rng, size):
    asked, index = random_request(rng, size), rng.choice([0, 1, 1000, 2**40])
    if rng.random() < 0.1:
        return SamplerRun(attrs.evolve(asked, prompt_logprobs=rng.choice([0, 1, 20])), index, given=rng.randrange(size))
    drafts = tuple(rng.randrange(size) for _ in range(rng.choice([0, 0, 1, 4])))
    rows = 1 + len(drafts)
    masks = tuple(rng.choice([None, mask_of(rng, size)]) for _ in range(rows)) if rng.random() < 0.3 else ()
    return SamplerRun(asked, index, rows, drafts, masks, open_at(asked, rng, size))


@pytest.mark.spec("ENG-34")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(20))
def test_runs_of_every_kind_give_the_bits_of_numpy(size, seed):
    rng = random.Random(f"{size}/{seed}")
    runs = [random_run(rng, size) for _ in range(rng.randrange(1, 12))]
    logits = np.stack([random_row(rng, size) for _ in range(sum(run.rows for run in runs))])
    agree(logits, runs, threads=rng.choice([1, 2, 3]), widest_bits=rng.choice([128, 256, 512]))


@pytest.mark.spec("ENG-34")
@given(
    arrays.arrays(np.float32, st.integers(1, 200), elements=st.floats(width=32, allow_nan=True)),
    st.builds(
        SamplingParams,
        temperature=st.floats(0, 10),
        top_k=st.integers(0, 250),
        top_p=st.floats(0, 1, exclude_min=True),
        min_p=st.floats(0, 1),
        repetition_penalty=st.floats(0, 1e308, exclude_min=True),
        presence_penalty=st.floats(allow_nan=False, allow_infinity=False),
        frequency_penalty=st.floats(-2, 2),
        logit_bias=st.just(()) | st.floats(allow_nan=False, allow_infinity=False).map(lambda bias: ((0, bias),)),
    ),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([None, 0, 3]),
)
@settings(deadline=None, max_examples=300)
def test_rows_from_hypothesis_give_the_bits_of_numpy(row, sampling, seed, logprobs):
    known = tuple(range(0, len(row), 2))
    asked = GenerationRequest(
        prompt=known[:9], emitted=known[5:], max_tokens=999, seed=seed, logprobs=logprobs, sampling=sampling
    )
    agree(row[None], [SamplerRun(asked, 5, edits=open_edits(asked))])


VOCABULARY = 49_152


@pytest.mark.spec("ENG-34", "ENG-54")
@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999, 0.999999])
@pytest.mark.parametrize("spread", [0.1, 1.0, 6.0])
def test_small_and_large_nuclei_of_a_whole_vocabulary_are_those_of_numpy(top_p, spread):
    logits = np.random.default_rng(7).normal(0, spread, (4, VOCABULARY)).astype(np.float32)
    agree(logits, [SamplerRun(request(seed=i, top_p=top_p, logprobs=5), i) for i in range(4)], threads=2)


def test_a_run_of_drafts_continues_exactly_while_they_are_drawn():
    logits = np.random.default_rng(8).normal(0, 3, (5, VOCABULARY)).astype(np.float32)
    best = [int(row.argmax()) for row in logits]
    right = agree(logits, [SamplerRun(request(temperature=0.0), 0, 5, tuple(best[:4]))])
    wrong = agree(logits, [SamplerRun(request(temperature=0.0), 0, 5, (best[0], best[1] + 1, best[2], best[3]))])
    assert [len(draws) for draws, _ in right + wrong] == [5, 2]


@pytest.mark.spec("ENG-34")
def test_a_row_that_cannot_be_drawn_is_a_fault_of_its_own_run():
    logits = np.array([[0, 1], [math.nan, 1], [0, 1], [-math.inf, 1]], np.float32)
    nothing, first = np.array([0], np.uint32), np.array([1], np.uint32)
    runs = [SamplerRun(request(), 0, masks=masks) for masks in [(), (), (nothing,), (first,)]]
    assert [fault for _, fault in agree(logits, runs)] == [type(None), NotSampled, ConstraintFailed, NotSampled]


PENALISED = {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2}


@pytest.mark.spec("ENG-34", "ENG-59")
@pytest.mark.parametrize("wanted", [None, 5])
def test_each_row_of_a_run_counts_the_drafts_before_it(wanted):
    logits = np.random.default_rng(9).normal(0, 1, VOCABULARY).astype(np.float32)
    asked = request(temperature=0.0, logprobs=wanted, **PENALISED)
    one_by_one = [int(logits.argmax())]
    while len(one_by_one) < 6:
        edits = open_edits(attrs.evolve(asked, emitted=tuple(one_by_one)))
        one_by_one += [agree(logits[None], [SamplerRun(asked, 0, edits=edits)])[0][0][0][0]]
    run = SamplerRun(asked, 0, 6, tuple(one_by_one[:5]), edits=open_edits(asked))
    [(draws, _)] = agree(np.stack([logits] * 6), [run])
    assert [draw[0] for draw in draws] == one_by_one
    assert len(set(one_by_one)) == 6


@pytest.mark.spec("ENG-34")
def test_a_large_constraint_gives_the_bits_of_numpy_at_every_vector_width():
    source = np.random.default_rng(10)
    size = VOCABULARY + 19
    logits = source.normal(0, 3, (4, size)).astype(np.float32)
    masks = [np.packbits(source.random(32 * 1538) < share, bitorder="little").view(np.uint32) for share in (0.95, 1.1)]
    for widest_bits in (128, 256, 512):
        for fields in ({"temperature": 0.0}, {}, {"top_k": 40}, {"top_p": 0.9}):
            runs = [SamplerRun(request(seed=i, **fields), i, masks=(masks[i % 2],)) for i in range(4)]
            agree(logits, runs, threads=2, widest_bits=widest_bits)


@pytest.mark.spec("ENG-34")
def test_calls_that_would_read_outside_an_array_are_refused():
    native = NativeSampler(NATIVE, 4, 1)._native
    row, chains = _pack_row(SamplerRun(request(logprobs=2), 0), 0, 4, -1, -1), bytearray()
    logits, starts = np.zeros((1, 4), np.float32), np.array([0, 1], np.int32)
    entries, penalties = np.zeros(1, EDIT), struct.pack("=3d", 1, 0, 0)
    edited = row[:72] + bytes(8) + row[80:]
    assert len(native.draw(row, starts, logits, b"", [], chains)) == 1
    assert len(native.draw(edited, starts, logits, b"", [(penalties, entries)], chains)) == 1
    for wrong_edits in (
        [(penalties, np.array([(4, 0, 0)], EDIT))],
        [(penalties, np.array([(-1, 0, 0)], EDIT))],
        [(penalties, np.zeros(5, EDIT))],
        [(penalties, entries.tobytes()[:-1])],
        [(penalties[:-1], entries)],
        [penalties],
        [],
    ):
        with pytest.raises(ValueError, match=r"\w{3}"):
            native.draw(edited, starts, logits, b"", wrong_edits, chains)
    for wrong in (
        (row, starts, logits[:, :3].copy(), b""),
        (row, starts, logits, bytes(3)),
        (row[:-1], starts, logits, b""),
        (row * 2, starts, np.zeros((2, 4), np.float32), b""),
        (row, starts[:1], logits, b""),
        (row, starts[:0], logits, b""),
        (row, np.array([0, 0, 1], np.int32), logits, b""),
        (row[:56] + bytes([5]) + row[57:], starts, logits, b""),  # five log-probabilities of four
        (row[:64] + bytes(8) + row[72:], starts, logits, b""),  # the first mask of none
        (row[:88] + bytes([4]) + bytes(7) + row[96:], starts, logits, b""),  # about the fifth token of four
        (row[:56] + b"\xff" * 32 + bytes(8) + row[96:], starts, logits, b""),  # about a token, but not how likely it is
        (struct.pack("=d", -1) + row[8:], starts, logits, b""),  # a temperature
        (struct.pack("=d", math.nan) + row[8:], starts, logits, b""),
        # about a token far below 0, whose lower half is above the vocabulary
        (row[:88] + struct.pack("=q", -(1 << 40) + (1 << 30)) + row[96:], starts, logits, b""),
        (row[:8] + struct.pack("=d", 0) + row[16:], starts, logits, b""),  # a top_p
        (row[:8] + struct.pack("=d", math.nan) + row[16:], starts, logits, b""),
        (row[:16] + struct.pack("=d", 1.5) + row[24:], starts, logits, b""),  # a min_p
        (row[:96] + bytes(8), starts, logits, b""),  # the first chain of none
    ):
        with pytest.raises(ValueError, match=r"\w{3}"):
            native.draw(*wrong, [], chains)
    logits.flags.writeable = False
    with pytest.raises(TypeError, match="read-write"):
        native.draw(row, starts, logits, b"", [], chains)


def chain_with(place, value):
    """Return the chain of a request with one field replaced."""
    chain = bytearray(_pack_chain(SamplerRun(request(temperature=0.5, top_k=1, samplers=("top_k",)), 0)))
    struct.pack_into("=d" if isinstance(value, float) else "=q", chain, place, value)
    return chain


@pytest.mark.spec("ENG-34")
def test_chains_that_no_request_has_are_refused():
    native = NativeSampler(NATIVE, 4, 1)._native
    row = _pack_row(SamplerRun(request(), 0), 0, 4, -1, -1, 0)
    logits, starts = np.zeros((1, 4), np.float32), np.array([0, 1], np.int32)
    assert native.draw(row, starts, logits, b"", [], chain_with(8, 0.5))[0]
    for place, value in CHAINS_WITHOUT_SENSE:
        with pytest.raises(ValueError, match="chain"):
            native.draw(row, starts, logits, b"", [], chain_with(place, value))
    with pytest.raises(ValueError, match="do not fit"):
        native.draw(row, starts, logits, b"", [], chain_with(8, 0.5)[:-1])


CHAINS_WITHOUT_SENSE = (
    *((place, -1.0) for place in (0, 8, 16, 24, 32, 40, 48, 64)),  # numbers that are not below 0
    *((place, math.nan) for place in (0, 8, 16, 24, 32, 40, 48, 64, 88)),
    *((96, -1), (96, 0), (104, -1)),  # top-k, and that of a step; the least to keep
    *((120, -1), (120, 8)),  # how many steps
)


def random_chain(rng):
    """Return the fields of `SamplingParams` that make a chain, most of them at once."""
    order = [*FILTERS]
    rng.shuffle(order)
    return {
        "temperature": rng.choice([0.0, 1.0, 0.7, 1.5, 5e-324, 1e-3, 1e3]),
        "top_n_sigma": rng.choice([0.0, 0.0, 1.0, 0.5, 3.0]),
        "dynatemp_range": rng.choice([0.0, 0.0, 0.5, 2.0]),
        "dynatemp_exponent": rng.choice([0.0, 1.0, 2.5]),
        "top_k": rng.choice([0, 0, 1, 40, 1000]),
        "typical_p": rng.choice([1.0, 1.0, 0.5, 0.95, 1e-9]),
        "top_p": rng.choice([1.0, 0.9, 0.5]),
        "min_p": rng.choice([0.0, 0.1, 1.0]),
        "xtc_probability": rng.choice([0.0, 0.5, 1.0]),
        "xtc_threshold": rng.choice([0.1, 0.01, 0.0, 0.5]),
        "min_keep": rng.choice([0, 0, 1, 3, 50, 10**6]),
        "samplers": rng.choice([None, tuple(order[: rng.randrange(8)])]),
    }


def random_mirostat(rng):
    return {
        "temperature": rng.choice([0.0, 1.0, 0.7, 1.5]),
        "mirostat": rng.choice([1, 2]),
        "mirostat_tau": rng.choice([0.0, 3.0, 5.0, 100.0]),
        "mirostat_eta": rng.choice([0.1, 1.0, 100.0]),
    }


@pytest.mark.spec("ENG-34")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(20))
def test_chains_and_mirostat_give_the_bits_of_numpy(size, seed):
    rng = random.Random(f"{size}/{seed}")
    runs = [random_run(rng, size) for _ in range(2)]
    for _ in range(rng.randrange(1, 8)):
        run = attrs.evolve(random_run(rng, size), given=None)
        fields = rng.choice([random_chain, random_chain, random_mirostat])(rng)
        asked = attrs.evolve(run.request, sampling=attrs.evolve(run.request.sampling, **fields))
        if "mirostat" in fields:
            mu = rng.choice([None, -3.0, 7.5, 1e4, -1e4, 20.0])
            run = attrs.evolve(run, rows=1, drafts=(), masks=run.masks[:1], mu=mu)
        runs.append(attrs.evolve(run, request=asked))
    logits = np.stack([random_row(rng, size) for _ in range(sum(run.rows for run in runs))])
    agree(logits, runs, threads=rng.choice([1, 2, 3]), widest_bits=rng.choice([128, 256, 512]))


def test_numpy_draws_where_it_is_requested():
    assert isinstance(make_sampler(10, 1, native=False), NumpySampler)


class OfAnotherVersion:
    """A module whose sampler, like that of an extension built from older or newer sources, has another layout."""

    class Sampler:
        @staticmethod
        def version():
            return VERSION + 1


class WithoutVersion:
    class Sampler:
        """A module of the time before layouts had a number."""


@pytest.mark.spec("ENG-55")
@pytest.mark.parametrize("module", [OfAnotherVersion, WithoutVersion, object()])
def test_numpy_draws_and_logs_it_if_the_extension_has_another_version(module, monkeypatch, caplog):
    monkeypatch.setattr(native_sampler, "load_native", lambda: module)
    assert isinstance(make_sampler(10, 1), NumpySampler)
    assert "install the package again" in caplog.text


def test_the_native_sampler_draws_if_it_was_built():
    assert isinstance(make_sampler(10, 2), NativeSampler)
