"""Every message of the fleet is decoded as it was encoded, field by field and bit by bit."""

import inspect
import math
import struct
import types
import typing

import attrs
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tests.kit.chat.field_values import values_of
from tlserve import errors
from tlserve.fleet import link, wire
from tlserve.fleet.link import Ack, NodeInfo, PollReply, SessionEvents, SessionKey
from tlserve.generation import (
    EmbeddingRequest,
    EngineStatistics,
    GenerationEvent,
    GenerationRequest,
    PrefillStarted,
    TokenEvent,
    TokenLogprob,
)

KEY = SessionKey("head", 1, 0)
FIELDS_OF_VERSION = {
    5: {
        "BackendInfo": "model_id context_tokens vocabulary_size embedding_size system_fingerprint kernels admission_limit ready"
        " not_ready_reason",
        "Breaker": "heads tail",
        "Distribution": "bounds counts total",
        "Dry": "multiplier base allowed_length last_n breakers",
        "EmbeddingRequest": "inputs priority request_id",
        "EngineStatistics": "kv_used kv_cached kv_free queue_depth active_sequences batch_tokens prefix_cache_queries_total"
        " prefix_cache_hits_total preemptions_total kv_evictions_total steps_total prompt_tokens_total generated_tokens_total"
        " drafted_tokens_total accepted_tokens_total finished_stop_total finished_length_total finished_aborted_total"
        " finished_failed_total step_seconds_total forward_seconds_total step_durations_s step_rows",
        "GenerationRequest": "prompt max_tokens seed sampling emitted choice stop_ids min_tokens allowed_ids banned mu"
        " logprobs prompt_logprobs grammar"
        " priority cache_salt progress request_id tenant cache_owner"
        " conversation",
        "Grammar": "source",
        "NodeInfo": "node incarnation version backend slots refusals draining",
        "PollReply": "incarnation sessions unknown statistics draining",
        "PrefillStarted": "cached_tokens",
        "Progress": "ahead done",
        "PromptLogprobs": "start tokens",
        "PromptToken": "token logprob top",
        "SamplingParams": "repetition_penalty presence_penalty frequency_penalty penalty_last_n dry logit_bias top_n_sigma"
        " temperature dynatemp_range dynatemp_exponent top_k typical_p top_p min_p xtc_probability xtc_threshold min_keep"
        " samplers mirostat mirostat_tau mirostat_eta",
        "SessionEvents": "key start events error",
        "SessionKey": "head session epoch",
        "Ack": "key have until",
        "TokenEvent": "index token logprob top finish mu",
        "TokenLogprob": "token logprob",
    }
}
"""The fields of each version. When a class gets a new field: raise `wire.VERSION` and add a row here."""


def classes_in(*kinds: object) -> set[type]:
    """Return the attrs classes that values of `kinds` are made of."""
    found: set[type] = set()
    for kind in kinds:
        if isinstance(kind, type) and attrs.has(kind):
            found |= {kind, *classes_in(*typing.get_type_hints(kind).values())}
        else:
            found |= classes_in(*typing.get_args(kind))
    return found


@pytest.mark.spec("WIRE-1")
def test_a_field_that_is_new_needs_a_new_version() -> None:
    carried = classes_in(GenerationRequest, EmbeddingRequest, NodeInfo, PollReply, Ack, GenerationEvent)
    fields = {kind.__name__: " ".join(field.name for field in attrs.fields(kind)) for kind in carried}
    assert fields == FIELDS_OF_VERSION[wire.VERSION]


def over_the_wire(message: object, kind: type) -> object:
    return wire.read(wire.write(message), kind)


@pytest.mark.spec("WIRE-1")
@given(values_of(SessionKey), values_of(GenerationRequest), values_of(float))
def test_a_placement_is_decoded_as_it_was_encoded(key: SessionKey, request: GenerationRequest, wall_s: float) -> None:
    assert over_the_wire(wire.Place(key, request, wall_s), wire.Place) == wire.Place(key, request, wall_s)


@given(st.lists(values_of(Ack), max_size=3).map(tuple))
def test_acknowledgements_are_decoded_as_they_were_encoded(acks: tuple[Ack, ...]) -> None:
    assert over_the_wire(wire.Poll("head", acks, 1.5), wire.Poll) == wire.Poll("head", acks, 1.5)


@given(values_of(NodeInfo))
def test_the_description_of_a_node_is_decoded_as_it_was_encoded(info: NodeInfo) -> None:
    assert wire.result_of(over_the_wire(wire.reply_of(info), wire.Reply), NodeInfo) == info


@given(values_of(EmbeddingRequest))
def test_an_embedding_request_is_decoded_as_it_was_encoded(request: EmbeddingRequest) -> None:
    assert over_the_wire(request, EmbeddingRequest) == request


def polled(reply: PollReply) -> PollReply:
    answer = wire.write(wire.reply_of(wire.poll_answer_of(reply)))
    return wire.poll_reply_of(wire.result_of(wire.read(answer, wire.Reply), wire.PollAnswer))


def reply_with(*events: GenerationEvent, error: errors.TlserveError | None = None) -> PollReply:
    sessions = (SessionEvents(key=KEY, start=3, events=events, error=error),)
    return PollReply(incarnation="i", sessions=sessions, unknown=(), statistics=EngineStatistics())


@pytest.mark.spec("WIRE-1")
@given(
    st.lists(values_of(GenerationEvent), max_size=4).map(tuple),
    values_of(EngineStatistics),
    st.lists(values_of(SessionKey), max_size=2).map(tuple),
    st.booleans(),
)
def test_a_reply_to_a_poll_is_decoded_as_it_was_encoded(
    events: tuple[GenerationEvent, ...], statistics: EngineStatistics, unknown: tuple[SessionKey, ...], draining: bool
) -> None:
    reply = attrs.evolve(reply_with(*events), statistics=statistics, unknown=unknown, draining=draining)
    assert polled(reply) == reply


@pytest.mark.spec("WIRE-2")
@given(st.integers(0, (1 << 64) - 1))
def test_every_bit_of_a_logprob_is_transmitted(bits: int) -> None:
    (logprob,) = struct.unpack("<d", struct.pack("<Q", bits))
    event = TokenEvent(0, 1, logprob, (TokenLogprob(1, logprob),))
    (session,) = polled(reply_with(event)).sessions
    (crossed,) = session.events
    assert isinstance(crossed, TokenEvent)
    for number in (crossed.logprob, crossed.top[0].logprob):
        assert number is not None
        assert struct.pack("<d", number) == struct.pack("<d", logprob)


@pytest.mark.spec("WIRE-2")
@given(st.lists(st_numpy.arrays(np.uint32, st.integers(0, 5)), max_size=3))
def test_every_bit_of_a_vector_is_transmitted(bits: list[np.ndarray]) -> None:
    vectors = tuple(bit.view(np.float32) for bit in bits)
    result = wire.result_of(over_the_wire(wire.reply_of(wire.vectors_to_bytes(vectors)), wire.Reply), list[bytes])
    crossed = wire.vectors_of(result)
    assert [vector.dtype for vector in crossed] == [np.float32] * len(bits)
    assert [vector.tobytes() for vector in crossed] == [vector.tobytes() for vector in vectors]


# --- errors ---------------------------------------------------------------------------------------------------------


def made(kind: type[errors.TlserveError]) -> errors.TlserveError:
    """Make an error in which every field has a different value."""
    own = {"param": "seed", "code": "odd", "retry_after_s": 7}
    return kind("it went wrong", **{name: own[name] for name in wire.CARRIED[kind]})


def state_of(error: errors.TlserveError) -> tuple[object, ...]:
    return type(error), error.args, vars(error)


@pytest.mark.spec("WIRE-3")
@pytest.mark.parametrize("kind", wire.CARRIED, ids=lambda kind: kind.__name__)
def test_an_error_keeps_its_class_and_fields(kind: type[errors.TlserveError]) -> None:
    fault = over_the_wire(wire.fault_of(made(kind)), wire.Fault)
    assert state_of(wire.error_of(fault)) == state_of(made(kind))


def test_an_error_that_ends_a_session_comes_after_its_events() -> None:
    (session,) = polled(reply_with(PrefillStarted(2), error=errors.NoCapacity("full", retry_after_s=9))).sessions
    assert session.events == (PrefillStarted(2),)
    assert state_of(session.error) == state_of(errors.NoCapacity("full", retry_after_s=9))


@pytest.mark.spec("WIRE-3")
def test_every_error_that_a_request_can_end_with_has_a_row() -> None:
    family = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.TlserveError)]
    ours = [kind for kind in family if not issubclass(kind, errors.OperatorError) and kind is not errors.TlserveError]
    links = [kind for kind in vars(link).values() if isinstance(kind, type) and issubclass(kind, errors.TlserveError)]
    assert {*ours, *links} - {errors.TlserveError} <= set(wire.CARRIED)


@pytest.mark.spec("WIRE-3")
def test_an_error_without_a_row_is_sent_as_its_nearest_base() -> None:
    class Odd(errors.Overloaded):
        """An overload of a kind that the wire does not know."""

    assert type(wire.error_of(wire.fault_of(Odd("odd", retry_after_s=3)))) is errors.Overloaded
    assert type(wire.error_of(wire.fault_of(errors.SettingsError(("odd",))))) is errors.ServerFault


# --- invalid messages ----------------------------------------------------------------------------------------------


@pytest.mark.spec("WIRE-4")
def test_another_version_is_refused_with_a_reason() -> None:
    other = bytes((wire.VERSION + 1,)) + wire.write(wire.Hello())[1:]
    with pytest.raises(wire.WireRefused, match=rf"uses wire format {wire.VERSION + 1}, this side {wire.VERSION};"):
        wire.read(other, wire.Hello)


@pytest.mark.spec("WIRE-4")
@given(st.binary(max_size=40))
def test_bytes_that_are_not_a_message_are_refused(data: bytes) -> None:
    for kind in (wire.Place, wire.Poll, wire.Cancel, EmbeddingRequest):
        with pytest.raises(wire.WireRefused):
            wire.read(bytes((wire.VERSION,)) + b"\xc1" + data, kind)
        with pytest.raises(wire.WireRefused):
            wire.read(b"", kind)


@pytest.mark.spec("WIRE-4")
def test_a_message_nested_more_deeply_than_can_be_read_is_refused() -> None:
    deep = b"\x93\xa4head\x91" + b"\x83\xa3key" * 5000
    with pytest.raises(wire.WireRefused, match="cannot be read"):
        wire.read(bytes((wire.VERSION,)) + deep, wire.Poll)
    with pytest.raises(wire.WireRefused, match="cannot be read"):
        wire.result_of(wire.Reply(msgspec.Raw(deep)), wire.Poll)


@pytest.mark.spec("WIRE-4")
@pytest.mark.parametrize(
    "answer",
    [
        ("i", [(KEY, 0, [(9, PrefillStarted())], None)], (), EngineStatistics(), False),
        ("i", [(KEY, 0, [(-4, PrefillStarted())], None)], (), EngineStatistics(), False),
        ("i", [(KEY, 0, [(3, PrefillStarted())], None)], (), EngineStatistics(), False),
        ("i", [(KEY, 0, [], wire.Fault("Nothing", "odd"))], (), EngineStatistics(), False),
        ("i", [(KEY, 0, [], wire.Fault("Overloaded", "odd", {"param": 1}))], (), EngineStatistics(), False),
        ("i", [(KEY, 0, [], wire.Fault("Overloaded", "odd", {"retry_after_s": None}))], (), EngineStatistics(), False),
        ("i", [(KEY, 0, [], wire.Fault("Refusal", "odd", {"param": 1}))], (), EngineStatistics(), False),
    ],
    ids=[
        *("no such event", "no such event before", "another event", "no such error", "another error's fields"),
        *("a field of a wrong type", "a name that is a number"),
    ],
)
def test_an_answer_without_a_meaning_is_refused(answer: object) -> None:
    with pytest.raises(wire.WireRefused):
        wire.poll_reply_of(wire.result_of(wire.reply_of(answer), wire.PollAnswer))


def test_a_vector_of_broken_length_is_refused() -> None:
    with pytest.raises(wire.WireRefused):
        wire.vectors_of([b"abc"])


@pytest.mark.spec("WIRE-1")
def test_the_encoded_forms_have_the_fields_of_their_classes() -> None:
    pairs: list[tuple[type[msgspec.Struct], type]] = [(wire.PollAnswer, PollReply), (wire.Events, SessionEvents)]
    for form, kind in pairs:
        assert form.__struct_fields__ == tuple(field.name for field in attrs.fields(kind))
    calls: list[tuple[type[msgspec.Struct], types.FunctionType]] = [
        (wire.Place, link.NodeLink.place),
        (wire.Poll, link.NodeLink.poll),
        (wire.Cancel, link.NodeLink.cancel),
    ]
    for form, call in calls:
        assert ("self", *form.__struct_fields__) == tuple(inspect.signature(call).parameters)


def test_a_session_needs_few_bytes_per_token() -> None:
    events = tuple(TokenEvent(index, 1000 + index, -0.5) for index in range(100))
    reply = wire.write(wire.reply_of(wire.poll_answer_of(reply_with(*events))))
    assert math.ceil(len(reply) / 100) < 60
