"""Token events become deltas, which join to the answer; no part of a stop string is sent."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.http.feeding import assert_same_at_every_split
from tests.kit.model.tiny_tokenizers import gpt2_metadata, prefixed
from tlserve.chat.dialect import USUAL_FORM, Channel, ChannelText, ToolUse, TurnForm
from tlserve.chat.dialects.json_calls import QWEN3
from tlserve.chat.dialects.mistral import MISTRAL
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.logprob_entries import TokenChoice
from tlserve.chat.output.call_deltas import new_call_id
from tlserve.chat.output.deltas import NOTHING, Answer, AnswerCall, Delta, fold
from tlserve.chat.output.output_reader import OutputReader
from tlserve.errors import ClientError
from tlserve.generation import Finish, TokenEvent, TokenLogprob
from tlserve.text.tokenizer import build_tokenizer

BYTES = build_tokenizer(prefixed({"model": "bytes"}))
TINY = build_tokenizer(gpt2_metadata())
EOS = 2


def events(tokens, finish=Finish.LENGTH, logprobs=False):
    """Return the events of `tokens`; the last one carries `finish`."""
    last = len(tokens) - 1
    return [
        TokenEvent(
            index=i,
            token=token,
            logprob=-float(i) if logprobs else None,
            top=(TokenLogprob(token, -float(i)), TokenLogprob(0, -9.0)) if logprobs else (),
            finish=finish if i == last else None,
        )
        for i, token in enumerate(tokens)
    ]


def read_deltas(tokenizer, stream, stops=(), dialect=PLAIN, tools=None):
    ids = iter(f"call_{number}" for number in range(100))
    reader = OutputReader(tokenizer, stops, dialect, tools=tools, new_call_id=lambda: next(ids))
    deltas = []
    for event in stream:
        deltas.append(reader.feed(event))
        if reader.stopped:
            break
    return deltas


def answer(tokenizer, stream, stops=(), dialect=PLAIN, tools=None):
    return fold(read_deltas(tokenizer, stream, stops, dialect, tools))


def pieces_of(parts):
    """Return the ids of text that was split into `parts` before it was encoded: any split into tokens."""
    return [token for part in parts for token in TINY.encode(part)]


# --- stop strings never leak ----------------------------------------------------------------------------------------------


@pytest.mark.spec("CHAT-15")
@pytest.mark.parametrize("text", ["the theatre there", "th the thethe", "the thea"])
def test_a_stop_string_never_leaks_whatever_the_tokens_are(text):
    def run(parts):
        return answer(TINY, events(pieces_of(parts)), ["theatre", " there"]).content

    expected = min(text[: text.find(stop)] if stop in text else text for stop in ("theatre", " there"))
    assert assert_same_at_every_split(text, run) == expected


def test_pieces_of_a_stop_string_are_held_back_and_then_dropped():
    deltas = read_deltas(BYTES, events(b"bcdef"), ["de"])
    assert [delta.content for delta in deltas] == ["b", "c", "", ""]
    assert fold(deltas) == Answer(content="bc", finish=Finish.STOP)


@pytest.mark.spec("CHAT-16")
def test_held_text_is_released_when_the_match_fails():
    assert [delta.content for delta in read_deltas(BYTES, events(b"bddx"), ["de"])] == ["b", "", "d", "dx"]


@pytest.mark.spec("CASE-1", "CHAT-16")
def test_held_text_is_released_when_the_answer_ends_by_length():
    deltas = read_deltas(BYTES, events(b"bcd"), ["de"])
    assert (deltas[-1].content, deltas[-1].finish) == ("d", Finish.LENGTH)


def test_held_text_is_released_when_the_answer_ends_by_its_stop_id():
    deltas = read_deltas(TINY, events([*TINY.encode("a the"), EOS], Finish.STOP), ["thex"])
    assert fold(deltas) == Answer(content="a the", finish=Finish.STOP)


def test_nothing_is_read_after_the_end():
    reader = OutputReader(BYTES, ["c"])
    deltas = [reader.feed(event) for event in events(b"bcdef")]
    assert fold(deltas).content == "b"
    assert (reader.stopped, reader.tokens, deltas[-1]) == (True, 2, Delta())


@pytest.mark.spec("CHAT-15")
@given(st.text("abé", max_size=10), st.lists(st.text("abé", min_size=1, max_size=3), max_size=4))
def test_the_joined_stream_is_the_text_before_the_first_stop(text, stops):
    data = text.encode()
    found = answer(BYTES, events(list(data)), stops) if data else Answer(finish=None)
    ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    end, size = min(ends, default=(len(text), 0))
    assert found.content == text[: end + size]
    assert found.finish is (Finish.STOP if ends else Finish.LENGTH if data else None)


# --- characters across tokens ---------------------------------------------------------------------------------------------

FAMILY = "👩‍👩‍👧 漢字 é"


@pytest.mark.spec("CHAT-17")
@pytest.mark.parametrize("tokenizer", [BYTES, TINY], ids=["bytes", "bpe"])
@pytest.mark.parametrize("max_tokens", range(1, 21))
def test_a_cut_inside_a_character_is_replaced_once_streamed_or_whole(tokenizer, max_tokens):
    tokens = tokenizer.encode(FAMILY)[:max_tokens]
    deltas = read_deltas(tokenizer, events(tokens))
    assert all("\ufffd" not in delta.content for delta in deltas[:-1])
    assert fold(deltas).content == b"".join(map(tokenizer.token_bytes, tokens)).decode("utf-8", "replace")
    assert fold(deltas).content.count("\ufffd") <= 1


def test_a_stop_string_can_span_characters_across_tokens():
    assert answer(BYTES, events(FAMILY.encode()), ["字 é"]) == Answer(content="👩‍👩‍👧 漢", finish=Finish.STOP)


# --- why it ended ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("CHAT-18")
def test_the_reason_is_open_until_the_end():
    deltas = read_deltas(BYTES, events(b"abc"))
    assert [delta.finish for delta in deltas] == [None, None, Finish.LENGTH]


@pytest.mark.spec("CHAT-18")
@pytest.mark.parametrize(
    ("tokens", "finish", "stops", "expected"),
    [
        (b"a", Finish.LENGTH, [], Answer(content="a", finish=Finish.LENGTH)),
        (b"ab", Finish.LENGTH, ["b"], Answer(content="a", finish=Finish.STOP)),
        (b"abc", Finish.LENGTH, ["bcd"], Answer(content="abc", finish=Finish.LENGTH)),
        (b"ab", Finish.STOP, [], Answer(content="a", finish=Finish.STOP)),
        (b"a", Finish.STOP, [], Answer(content="", finish=Finish.STOP)),
    ],
    ids=["max tokens", "stop on the last token", "held at the length", "stop id", "stop id at once"],
)
def test_each_end_has_its_reason(tokens, finish, stops, expected):
    assert answer(BYTES, events(tokens, finish), stops) == expected


def test_a_stop_string_in_the_replaced_tail_is_a_stop():
    assert answer(BYTES, events(b"a\xf0\x9f"), ["\ufffd"]) == Answer(content="a", finish=Finish.STOP)


@pytest.mark.spec("CHAT-19")
def test_the_stop_id_is_never_text_even_if_it_has_bytes():
    assert answer(BYTES, events(b"ab", Finish.STOP)).content == "a"


@pytest.mark.spec("CHAT-19")
def test_control_tokens_in_the_middle_are_not_text():
    assert answer(TINY, events([*TINY.encode("a"), 1, *TINY.encode("b")])).content == "ab"


@pytest.mark.spec("API-157")
def test_control_tokens_that_are_shown_are_text_by_their_spelling():
    reader = OutputReader(TINY, shows_controls=True)
    ids = [*TINY.encode("a"), 1, *TINY.encode("b")]
    text = fold(map(reader.feed, events(ids))).content
    assert text == "a" + TINY.token_spelling(1).decode() + "b"
    assert len(text) > 2


def test_the_tokens_read_are_counted_with_the_stop_id():
    reader = OutputReader(BYTES)
    for event in events(b"abc", Finish.STOP):
        reader.feed(event)
    assert reader.tokens == 3


def test_a_stream_that_was_cut_has_no_reason():
    assert fold(read_deltas(BYTES, events(b"ab", finish=None))) == Answer(content="ab")


def test_stops_that_are_refused_are_refused_before_any_token():
    with pytest.raises(ClientError):
        OutputReader(BYTES, [""])


# --- log-probabilities go with their text -----------------------------------------------------------------------------


@pytest.mark.spec("CHAT-20")
def test_each_entry_is_sent_with_its_text():
    deltas = read_deltas(BYTES, events(b"bddx", logprobs=True), ["de"])
    assert [[entry.chosen.bytes for entry in delta.logprobs] for delta in deltas] == [[b"b"], [], [b"d"], [b"d", b"x"]]


@pytest.mark.spec("CHAT-58")
def test_the_entries_of_a_stop_string_are_dropped():
    deltas = read_deltas(BYTES, events(b"bcde", logprobs=True), ["de"])
    assert [entry.chosen.token for entry in fold(deltas).logprobs] == [*b"bc"]


def test_all_entries_of_a_character_are_sent_with_it_and_have_raw_bytes():
    deltas = read_deltas(BYTES, events("a漢b".encode(), logprobs=True))
    assert [len(delta.logprobs) for delta in deltas] == [1, 0, 0, 3, 1]
    assert b"".join(entry.chosen.bytes for entry in fold(deltas).logprobs).decode() == "a漢b"


def test_the_entries_of_a_tail_that_was_cut_are_released_at_the_end():
    assert len(answer(BYTES, events("漢".encode()[:2], logprobs=True)).logprobs) == 2


def test_an_entry_holds_the_raw_bytes_and_the_likeliest_tokens_spelled():
    entry = answer(TINY, events(TINY.encode("a"), logprobs=True)).logprobs[0]
    token = TINY.encode("a")[0]
    assert entry.chosen == TokenChoice(token, b"a", 0.0)
    assert entry.top == (TokenChoice(token, b"a", 0.0), TokenChoice(0, b"<|endoftext|>", -9.0))


def test_without_logprobs_there_are_no_entries():
    assert answer(BYTES, events(b"abc")).logprobs == ()


@pytest.mark.spec("CHAT-20")
@given(st.text("abé", min_size=1, max_size=10), st.lists(st.text("ab", min_size=1, max_size=2), max_size=2))
def test_the_bytes_of_all_entries_spell_the_content(text, stops):
    found = answer(BYTES, events(list(text.encode()), logprobs=True), stops)
    assert b"".join(entry.chosen.bytes for entry in found.logprobs).decode() == found.content


# --- the interface of a dialect ---------------------------------------------------------------------------------------


class BracketReader:
    """Reads [..] as reasoning; the brackets are markup, and an opening one is held until the next character."""

    ended = False
    markers: frozenset[str] = frozenset()

    def __init__(self):
        self.held = 0
        self._channel = Channel.CONTENT

    def feed(self, text):
        return [piece for character in text for piece in self._step(character)]

    def _step(self, character):
        if self.held:
            self.held = 0
            self._channel = Channel.REASONING
        if character == "[":
            self.held = 1
            return []
        if character == "]":
            self._channel = Channel.CONTENT
            return []
        return [ChannelText(self._channel, character)]

    def finish(self):
        held, self.held = self.held, 0
        return [ChannelText(Channel.CONTENT, "[")] * held


@attrs.frozen
class BracketDialect:
    name: str = "brackets"
    form: TurnForm = USUAL_FORM

    def matches(self, template_source, special_tokens):
        return "[" in template_source

    def open_reader(self, opening=None, tools=None):
        return BracketReader()


@pytest.mark.spec("CHAT-21")
def test_channels_are_separate_and_stops_act_on_the_content_only():
    found = answer(BYTES, events(b"a[stop]bstopc"), ["stop"], BracketDialect())
    assert found == Answer(content="ab", reasoning="stop", finish=Finish.STOP)


def test_text_that_the_dialect_holds_at_the_end_is_content():
    assert answer(BYTES, events(b"a[", logprobs=True), (), BracketDialect()).content == "a["


def test_entries_wait_for_text_that_the_dialect_holds():
    deltas = read_deltas(BYTES, events(b"a[b]c", logprobs=True), (), BracketDialect())
    assert [len(delta.logprobs) for delta in deltas] == [1, 0, 2, 1, 1]


def test_everything_is_content_in_the_plain_dialect():
    reader = PLAIN.open_reader()
    assert list(reader.feed("<think>x")) == [ChannelText(Channel.CONTENT, "<think>x")]
    assert (list(reader.feed("")), list(reader.finish()), reader.held) == ([], [], 0)


def test_a_token_without_text_has_no_delta():
    deltas = read_deltas(BYTES, events("é".encode(), finish=None))
    assert deltas[0] is NOTHING
    assert deltas[1] == Delta(content="é")


# --- calls ------------------------------------------------------------------------------------------------

TOOLS = ToolUse(schemas={"now": {}, "add": {}})
NOW = b'<tool_call>{"name": "now", "arguments": {}}</tool_call>'
ADD = b'<tool_call>{"name": "add", "arguments": {"a": 1, "b": [2]}}</tool_call>'
BOTH = (AnswerCall("call_0", "now", "{}"), AnswerCall("call_1", "add", '{"a": 1, "b": [2]}'))


@pytest.mark.spec("CHAT-27")
def test_each_call_has_its_index_and_its_id_and_name_once():
    deltas = read_deltas(BYTES, events(NOW + b"\n" + ADD), (), QWEN3, TOOLS)
    pieces = [piece for delta in deltas for piece in delta.calls]
    assert [piece.index for piece in pieces] == sorted(piece.index for piece in pieces)
    assert [(piece.index, piece.id, piece.name) for piece in pieces if piece.id or piece.name] == [
        (0, "call_0", "now"),
        (1, "call_1", "add"),
    ]
    assert fold(deltas).calls == BOTH
    assert len([piece for piece in pieces if piece.index == 1]) > 5


@pytest.mark.spec("CHAT-30")
@pytest.mark.parametrize(
    ("text", "finish", "tools", "expected"),
    [
        (NOW, Finish.STOP, TOOLS, Answer(calls=BOTH[:1], finish=Finish.STOP, called=True)),
        (NOW, Finish.LENGTH, TOOLS, Answer(calls=BOTH[:1], finish=Finish.LENGTH)),
        (b"No.", Finish.STOP, TOOLS, Answer(content="No.", finish=Finish.STOP)),
        (NOW, Finish.STOP, ToolUse(hidden=True), Answer(finish=Finish.STOP)),
        (NOW, Finish.STOP, None, Answer(content=NOW.decode(), finish=Finish.STOP)),
        (NOW[:-13], Finish.STOP, TOOLS, Answer(calls=BOTH[:1], finish=Finish.STOP)),
    ],
    ids=["called", "cut", "no call", "may not call", "no tools", "ended inside"],
)
def test_only_a_natural_end_with_a_complete_call_gives_tool_calls(text, finish, tools, expected):
    tokens = [*text, 0] if finish is Finish.STOP else text
    assert answer(BYTES, events(tokens, finish), (), QWEN3, tools) == expected


@pytest.mark.spec("CHAT-64")
def test_an_answer_with_one_allowed_call_ends_with_it():
    once = ToolUse(schemas=TOOLS.schemas, parallel=False)
    reader = OutputReader(BYTES, (), QWEN3, tools=once)
    found = fold(reader.feed(event) for event in events(b"Hm " + NOW + ADD))
    assert (found.content, [call.name for call in found.calls], found.called) == ("Hm", ["now"], True)
    assert (reader.stopped, reader.tokens) == (True, len(b"Hm " + NOW) - len(b"</tool_call>"))


def test_stop_strings_act_on_the_visible_text_only():
    text = b"<think>stop</think>a" + ADD.replace(b"[2]", b'"stop"') + b"bstopc"
    found = answer(BYTES, events(text), ["stop"], QWEN3, TOOLS)
    assert (found.content, found.reasoning, found.called) == ("ab", "stop", True)
    assert found.calls == (AnswerCall("call_0", "add", '{"a": 1, "b": "stop"}'),)


@pytest.mark.spec("CHAT-31")
def test_a_marker_that_is_a_control_token_reaches_the_reader_as_its_spelling():
    tokenizer = build_tokenizer(gpt2_metadata(control=["</s>", "[TOOL_CALLS]", "[ARGS]", "[INST]"]))
    call = [1, *tokenizer.encode("now"), 2, *tokenizer.encode('{"a": 1}'), 3, 0]
    found = answer(tokenizer, events(call, Finish.STOP), (), MISTRAL, TOOLS)
    assert found == Answer(calls=(AnswerCall("call_0", "now", '{"a": 1}'),), finish=Finish.STOP, called=True)
    assert answer(tokenizer, events(call, Finish.STOP), (), MISTRAL).content == 'now{"a": 1}'


@pytest.mark.spec("CHAT-32")
def test_ids_of_calls_are_random_and_long():
    ids = {new_call_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert min(map(len, ids)) - len("call_") >= 24


def test_the_entries_of_reasoning_and_calls_are_also_sent():
    found = answer(BYTES, events(b"<think>a</think>b" + NOW, logprobs=True), (), QWEN3, TOOLS)
    assert b"".join(entry.chosen.bytes for entry in found.logprobs) == b"<think>a</think>b" + NOW


# --- stops and the least length ---------------------------------------------------------------------------------------


@pytest.mark.spec("API-128")
@pytest.mark.parametrize(
    ("min_tokens", "content", "finish"),
    [
        (0, "a", Finish.STOP),
        (2, "a", Finish.STOP),  # "bc" is complete with the third token
        (3, "abcda", Finish.STOP),
        (6, "abcda", Finish.STOP),  # it only begins within the first six
        (7, "abcdabc", Finish.LENGTH),
        (9, "abcdabc", Finish.LENGTH),
    ],
)
def test_a_stop_string_is_searched_only_after_min_tokens(min_tokens, content, finish):
    reader = OutputReader(BYTES, ["bc"], min_tokens=min_tokens)
    found = fold(reader.feed(event) for event in events(b"abcdabc"))
    assert found == Answer(content=content, finish=finish)


@pytest.mark.spec("API-130")
def test_an_included_stop_string_keeps_its_entries_and_later_text_has_none():
    reader = OutputReader(BYTES, ["cd"], include_stop=True)
    found = fold(reader.feed(event) for event in events(b"abcdef", logprobs=True))
    assert (found.content, found.finish) == ("abcd", Finish.STOP)
    assert bytes(byte for entry in found.logprobs for byte in entry.chosen.bytes) == b"abcd"


# --- places of entries, and tokens by channel -------------------------------------------------------------------------


@given(st.text("abé漢👩", min_size=1, max_size=10))
def test_an_entry_knows_the_place_of_its_character(text):
    found = answer(BYTES, events(list(text.encode()), logprobs=True))
    places = [place for place, character in enumerate(text) for _ in character.encode()]
    assert [entry.offset for entry in found.logprobs] == places


def reasoning_tokens(text, dialect=QWEN3, finish=Finish.LENGTH, tools=None):
    reader = OutputReader(BYTES, (), dialect, tools=tools)
    for event in events(text, finish):
        reader.feed(event)
    return reader.reasoning_tokens, reader.tokens


@pytest.mark.spec("API-69")
@pytest.mark.parametrize(
    ("text", "reasoning"),
    [
        (b"<think>ab</think>c", len(b"<think>ab")),  # the closing tag counts with the text after it
        (b"<think>ab", len(b"<think>ab")),
        (b"<think>ab</think>", len(b"<think>ab</think>")),  # and here there is no text after it
        (b"no thought", 0),
        (b"<thin", 0),
        ("<think>漢".encode(), len("<think>漢".encode())),
        (b"<think>ab</think>" + NOW, len(b"<think>ab")),
    ],
)
def test_tokens_are_counted_in_their_channel(text, reasoning):
    assert reasoning_tokens(text, tools=TOOLS) == (reasoning, len(text))


def test_without_a_reasoning_channel_no_token_is_reasoning():
    assert reasoning_tokens(b"<think>ab</think>c", PLAIN) == (0, 18)
