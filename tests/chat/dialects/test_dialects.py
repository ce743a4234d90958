"""Every dialect reads its own answers, however they are split, and returns everything else as content."""

import json
from functools import partial

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.http.feeding import assert_same_at_every_split, feed_by_unit, feed_whole
from tests.kit.source_tree import CHECKOUT
from tlserve.chat.dialect import (
    FROM_NOTHING,
    CallArguments,
    CallClosed,
    CallOpened,
    Channel,
    ChannelText,
    Opening,
    Piece,
    ToolUse,
)
from tlserve.chat.dialects.mistral import short_id
from tlserve.chat.dialects.named_calls import ALL_BEGIN, ALL_END, BEGIN, END, SEPARATOR
from tlserve.chat.dialects.registry import BY_NAME, DIALECTS, dialect_for
from tlserve.config.settings import DIALECT_NAMES

TEMPLATES = CHECKOUT / "tests" / "chat" / "templates"
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = ToolUse(schemas={"get_weather": WEATHER, "now": {}, "any": {}})
PARIS = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
NOW = '{"name": "now", "arguments": {}}'


@attrs.frozen
class Read:
    """The parts of an answer: its texts, and its calls as name, arguments, and whether they were complete."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str, bool], ...] = ()


def gathered(pieces):
    """Return the pieces as one value that does not depend on how they were split."""
    texts = {Channel.CONTENT: "", Channel.REASONING: ""}
    calls = []
    for piece in pieces:
        if isinstance(piece, ChannelText):
            texts[piece.channel] += piece.text
        elif isinstance(piece, CallOpened):
            calls.append((piece.name, "", False))
        elif isinstance(piece, CallArguments):
            name, arguments, _ = calls[-1]
            calls[-1] = (name, arguments + piece.text, False)
        else:
            assert isinstance(piece, CallClosed)
            calls[-1] = (*calls[-1][:2], True)
    return Read(texts[Channel.CONTENT], texts[Channel.REASONING], tuple(calls))


def run(name, opening=FROM_NOTHING, tools=TOOLS):
    """Return a run of the dialect's reader for `feeding`."""

    def run_parts(parts):
        reader = BY_NAME[name].open_reader(opening, tools)
        pieces: list[Piece] = []
        for part in parts:
            if reader.ended:
                break
            pieces += reader.feed(part)
        held = reader.held
        pieces += reader.finish()
        assert held >= 0
        return gathered(pieces)

    return run_parts


def read(name, text, opening=FROM_NOTHING, tools=TOOLS):
    return assert_same_at_every_split(text, run(name, opening, tools))


def call(name, arguments, complete=True):
    return (name, arguments, complete)


PARIS_CALL = call("get_weather", '{"city": "Paris"}')
NOW_CALL = call("now", "{}")
DS_CALL = f"{BEGIN}function{SEPARATOR}%s\n```json\n%s\n```{END}"
DS = ALL_BEGIN + DS_CALL % ("get_weather", '{"city": "Paris"}')
DS_MORE = "\n" + DS_CALL % ("now", "{}") + ALL_END
CODER = "<tool_call>\n<function=get_weather>\n<parameter=city>\n%s\n</parameter>\n</function>\n</tool_call>"

ANSWERS = [
    ("plain", "Hello <b>", Read("Hello <b>")),
    ("plain", f"<tool_call>{PARIS}</tool_call>", Read(calls=(PARIS_CALL,))),
    ("hermes", "Hello\n\nyou  ", Read("Hello\n\nyou  ")),
    ("hermes", f"<tool_call>\n{PARIS}\n</tool_call>", Read(calls=(PARIS_CALL,))),
    ("hermes", f"Let me see.\n<tool_call>\n{PARIS}\n</tool_call>\n", Read("Let me see.", calls=(PARIS_CALL,))),
    (
        "hermes",
        f"<tool_call>\n{PARIS}\n</tool_call>\n<tool_call>\n{NOW}\n</tool_call>",
        Read(calls=(PARIS_CALL, NOW_CALL)),
    ),
    ("hermes", f"<tool_call>[{PARIS}, {NOW}]</tool_call>", Read(calls=(PARIS_CALL, NOW_CALL))),
    ("hermes", f"<tool_call>{PARIS}</tool_call>\nDone.", Read("\nDone.", calls=(PARIS_CALL,))),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "any"}</tool_call>', Read(calls=(call("any", '{"a": 1}'),))),
    (
        "hermes",
        '<tool_call>{"name": "any", "arguments": "{\\"a\\": 1}"}</tool_call>',
        Read(calls=(call("any", '{"a": 1}'),)),
    ),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', Read(calls=(NOW_CALL,))),
    ("hermes", '<tool_call>{"name": "now", "arguments": null, "id": 7}</tool_call>', Read(calls=(NOW_CALL,))),
    ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>', Read(calls=(call("other", "{}"),))),
    (
        "hermes",
        '<tool_call>{"name": "any", "arguments": {"s": "a</tool_call>{\\"}"}}</tool_call>',
        Read(calls=(call("any", '{"s": "a</tool_call>{\\"}"}'),)),
    ),
    (
        "hermes",
        '<tool_call>{"name": "any", "arguments": {"s": "two\nlines"}}</tool_call>',
        Read(calls=(call("any", '{"s": "two\\nlines"}'),)),
    ),
    ("qwen3", "<think>\nHm.\n\nYes.\n</think>\n\nHello", Read("Hello", "Hm.\n\nYes.")),
    ("qwen3", "\n<think>\n\n</think>\n\nHello", Read("Hello")),
    ("qwen3", f"<think>\nHm\n</think>\n\nSo:\n<tool_call>\n{PARIS}\n</tool_call>", Read("So:", "Hm", (PARIS_CALL,))),
    ("qwen3", f"<think>{PARIS}<tool_call></think>x", Read("x", PARIS + "<tool_call>")),
    ("qwen3", "The tags <think> and </think>.", Read("The tags <think> and </think>.")),
    ("smollm3", f"<think>\nHm\n</think>\n<tool_call>{NOW}</tool_call>", Read("", "Hm", (NOW_CALL,))),
    ("mistral", "Bonjour [INST]", Read("Bonjour [INST]")),
    ("mistral", f'[TOOL_CALLS][{PARIS[:-1]}, "id": "abcdefghi"}}, {NOW}]', Read(calls=(PARIS_CALL, NOW_CALL))),
    ("mistral", f"Oui.[TOOL_CALLS] [{NOW}]", Read("Oui.", calls=(NOW_CALL,))),
    (
        "mistral",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}',
        Read(calls=(PARIS_CALL, NOW_CALL)),
    ),
    ("mistral", '[TOOL_CALLS]now{"a": 1} ```x', Read(" ```x", calls=(call("now", '{"a": 1}'),))),
    ("llama3", '{"name": "get_weather", "parameters": {"city": "Paris"}}', Read(calls=(PARIS_CALL,))),
    ("llama3", f"<|python_tag|>{PARIS}; {NOW}", Read(calls=(PARIS_CALL, NOW_CALL))),
    ("llama3", f"[{PARIS}, {NOW}]", Read(calls=(PARIS_CALL, NOW_CALL))),
    ("llama3", '[get_weather(city="Paris"), now()]', Read(calls=(PARIS_CALL, NOW_CALL))),
    (
        "llama3",
        "<|python_tag|> [any(a='it\\'s [)', b=[1, -2.5, (True, None)], c={'k': \"v\"}, d=false)]\n",
        Read(calls=(call("any", '{"a": "it\'s [)", "b": [1, -2.5, [true, null]], "c": {"k": "v"}, "d": false}'),)),
    ),
    ("qwen3_coder", CODER % "Paris", Read(calls=(PARIS_CALL,))),
    ("qwen3_coder", CODER % '5\n</p>\n"x"', Read(calls=(call("get_weather", '{"city": "5\\n</p>\\n\\"x\\""}'),))),
    (
        "qwen3_coder",
        "I look.\n" + (CODER % "Paris").replace("</function>", "<parameter=days>\n3\n</parameter>\n</function>"),
        Read("I look.", calls=(call("get_weather", '{"city": "Paris", "days": 3}'),)),
    ),
    ("qwen3_coder", "<tool_call><function=now></function></tool_call>", Read(calls=(NOW_CALL,))),
    ("deepseek_r1", DS + DS_MORE, Read(calls=(PARIS_CALL, NOW_CALL))),
    ("deepseek_r1", "<think>\nHm\n</think>\n\nBonjour", Read("Bonjour", "Hm")),
]


@pytest.mark.spec("CHAT-23")
@pytest.mark.parametrize(("name", "text", "expected"), ANSWERS)
def test_each_dialect_reads_its_own_answers_at_every_split(name, text, expected):
    assert read(name, text) == expected


NO_CALLS = [
    ("hermes", "<tool_call>what?</tool_call>"),
    ("hermes", "<tool_call></tool_call>"),
    ("hermes", "<tool_call>"),
    ("hermes", "<tool_call>[1, 2]</tool_call> and"),
    ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": 5}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": "five"}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
    ("hermes", "<tool_call>{\"name\": 'now'}</tool_call>"),
    ("hermes", '<tool_call>{"name": "now"'),
    ("hermes", 'a <tool_call>{"name": "no'),
    ("hermes", "a <tool_cal"),
    ("hermes", "text </tool_call> text"),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS] what is it?"),
    ("mistral", '[TOOL_CALLS] two words {"a": 1}'),
    ("mistral", "[TOOL_CALLS][5]"),
    ("llama3", '{"name": "nobody", "parameters": {}}'),
    ("llama3", '{"city": "Paris"}'),
    ("llama3", "[1, 2, 3]"),
    ("llama3", "[nobody(a=1)]"),
    ("llama3", "[now(1)]"),
    ("llama3", "[now(a=b)]"),
    ("llama3", "[now"),
    ("llama3", "["),
    ("llama3", "[]"),
    ("llama3", "<|python_tag|>print(1)"),
    ("llama3", "Say [now()]"),
    ("qwen3_coder", "<tool_call>\n<functions>"),
    ("qwen3_coder", "<tool_call>\n<function="),
    ("qwen3_coder", "<tool_call> no"),
    ("deepseek_r1", f"{BEGIN}function no"),
]


@pytest.mark.spec("CHAT-24")
@pytest.mark.parametrize(("name", "text"), NO_CALLS)
def test_text_that_is_not_a_valid_call_is_complete_content(name, text):
    assert read(name, text) == Read(text)


LONG = "9" * 5000


@pytest.mark.spec("CHAT-24")
def test_a_name_that_is_a_number_of_any_length_makes_no_call():
    text = f'<tool_call>{{"name": {LONG}, "arguments": {{}}}}</tool_call>'
    assert feed_whole(text, run("hermes")) == feed_by_unit(text, run("hermes")) == Read(text)


BROKEN = [
    ("hermes", f"<tool_call>{NOW}}}</tool_call>x", Read("}</tool_call>x", calls=(NOW_CALL,))),
    ("hermes", f"<tool_call>\n<tool_call>\n{NOW}\n</tool_call>", Read("<tool_call>", calls=(NOW_CALL,))),
    (
        "hermes",
        f"<tool_call>oops</tool_call>\n<tool_call>{NOW}</tool_call>",
        Read("<tool_call>oops</tool_call>", calls=(NOW_CALL,)),
    ),
    (
        "hermes",
        '<tool_call>{"name": "any", "arguments": {"a": nope}}</tool_call>',
        Read("}}</tool_call>", calls=(call("any", '{"a": nope', complete=False),)),
    ),
    (
        "mistral",
        '[TOOL_CALLS]now[ARGS]{"a" 1}',
        Read("1}", calls=(call("now", '{"a" ', complete=False),)),
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=now>\nno</function>",
        Read("\nno</function>", calls=(call("now", "{", complete=False),)),
    ),
    ("llama3", "[now(), nobody()]", Read(" nobody()]", calls=(NOW_CALL,))),
]


@pytest.mark.spec("CHAT-60")
@pytest.mark.parametrize(("name", "text", "expected"), BROKEN)
def test_a_call_that_becomes_invalid_stays_open_and_the_rest_is_content(name, text, expected):
    found = read(name, text)
    assert (found.calls, found.reasoning) == (expected.calls, "")
    assert found.content.replace(",", "") == expected.content


CUT = [
    ("hermes", '<tool_call>{"name": "any", "arguments": {"a": "b', call("any", '{"a": "b', complete=False)),
    ("hermes", '<tool_call>{"name": "any", "arguments": {"a": 1}', call("any", '{"a": 1}', complete=False)),
    ("hermes", f"<tool_call>{NOW}", NOW_CALL),
    ("hermes", f"<tool_call>{NOW}\n</tool_", NOW_CALL),
    ("mistral", '[TOOL_CALLS][{"name": "any", "arguments": {"a"', call("any", '{"a"', complete=False)),
    ("mistral", f"[TOOL_CALLS][{NOW}", NOW_CALL),
    ("deepseek_r1", DS[: DS.index("ris")], call("get_weather", '{"city": "Pa', complete=False)),
    (
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"days": "1',
        call("get_weather", '{"days": "1', complete=False),
    ),
]


@pytest.mark.spec("CHAT-60")
@pytest.mark.parametrize(("name", "text", "expected"), CUT)
def test_a_call_that_was_cut_keeps_its_generated_part(name, text, expected):
    assert read(name, text) == Read(calls=(expected,))


# --- reasoning --------------------------------------------------------------------------------------------------------

OPENED = Opening(template="<|im_start|>assistant\n<think>\n")


@pytest.mark.spec("CHAT-28")
@pytest.mark.parametrize("name", ["qwen3", "smollm3", "deepseek_r1", "qwen3_coder"])
def test_a_prompt_that_opened_the_reasoning_primes_the_reader(name):
    assert read(name, "\nHm.\n</think>\n\nHello", OPENED) == Read("Hello", "Hm.")
    assert read(name, "Hm. Ho", OPENED) == Read("", "Hm. Ho")
    assert read(name, "Hm.\n</thin", OPENED) == Read("", "Hm.\n</thin")


def test_a_prompt_that_closed_the_reasoning_leaves_content():
    closed = Opening(template="<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert read("qwen3", "Hello", closed) == Read("Hello")


@pytest.mark.spec("CHAT-62")
def test_a_tag_inside_the_prompt_opens_nothing():
    assert read("qwen3", "Hello", Opening(template="what is <think>?<|im_end|>assistant\n")) == Read("Hello")


@pytest.mark.spec("CHAT-28")
def test_a_continued_message_continues_in_its_own_channel():
    assert read("qwen3", "so.</think>Yes", Opening(begun="<think>I see,")) == Read("Yes", "so.")
    assert read("qwen3", "<think>", Opening(begun="The tag is ")) == Read("<think>")
    assert read("llama3", f"{NOW}", Opening(begun="I call ")) == Read(NOW)


@pytest.mark.spec("CHAT-61")
def test_reasoning_cut_by_the_limit_is_reasoning():
    assert read("qwen3", "<think>\nLet me think about") == Read("", "Let me think about")


# --- the tool options of a request ------------------------------------------------------------------------------------


@pytest.mark.spec("CHAT-29")
@pytest.mark.parametrize("name", BY_NAME)
def test_without_tools_a_call_is_content(name):
    for text in (f"a <tool_call>{NOW}</tool_call>", f"[TOOL_CALLS][{NOW}]", NOW, "[now()]", CODER % "x"):
        assert read(name, text, tools=None) == Read(text)


@pytest.mark.spec("CHAT-63")
@pytest.mark.parametrize(("name", "text"), [(name, text) for name, text, read_ in ANSWERS if read_.calls])
def test_calls_that_are_not_allowed_leave_neither_call_nor_markup(name, text):
    shown = read(name, text)
    assert read(name, text, tools=attrs.evolve(TOOLS, hidden=True)) == attrs.evolve(shown, calls=())


@pytest.mark.spec("CHAT-64")
@pytest.mark.parametrize(("name", "text"), [(name, text) for name, text, read_ in ANSWERS if len(read_.calls) > 1])
def test_without_parallel_calls_the_answer_ends_with_its_first(name, text):
    found = read(name, text, tools=attrs.evolve(TOOLS, parallel=False))
    assert found.calls == read(name, text).calls[:1]


@pytest.mark.spec("CHAT-27")
def test_arguments_come_in_pieces_as_they_are_generated():
    reader = BY_NAME["hermes"].open_reader(Opening(), TOOLS)
    pieces = [
        list(reader.feed(part)) for part in ("<tool_call>", '{"name": "get_', 'weather", "arguments": {"ci', 'ty": "Pa')
    ]
    assert pieces == [[], [], [CallOpened("get_weather"), CallArguments("{")], [CallArguments('"city": "Pa')]]


@pytest.mark.spec("CHAT-27")
def test_the_newer_mistral_form_and_tags_also_come_in_pieces():
    reader = BY_NAME["mistral"].open_reader(Opening(), TOOLS)
    assert list(reader.feed('[TOOL_CALLS]now[ARGS]{"a')) == [CallOpened("now"), CallArguments('{"a')]
    reader = BY_NAME["qwen3_coder"].open_reader(Opening(), TOOLS)
    head = "<tool_call>\n<function=any>\n<parameter=a>\n1\n</parameter>\n<param"
    assert list(reader.feed(head)) == [CallOpened("any"), CallArguments("{"), CallArguments('"a": "1"')]


# --- coercion ------------------------------------------------------------------------------------------------------------

KINDS = {
    "properties": {
        **{kind: {"type": kind} for kind in ("string", "integer", "number", "boolean", "object", "array")},
        "either": {"type": ["string", "integer"]},
    }
}
COERCED = [
    ("integer", '"5"', "5"),
    ("integer", "5.0", "5"),
    ("integer", "5.5", "5.5"),
    ("integer", '"5.5"', '"5.5"'),
    ("integer", '"05"', '"05"'),
    ("integer", '" 5"', '" 5"'),
    ("integer", "null", "null"),
    ("number", '"-2.5e3"', "-2.5e3"),
    ("number", '"much"', '"much"'),
    ("boolean", '"true"', "true"),
    ("boolean", '"True"', '"True"'),
    ("boolean", "1", "1"),
    ("string", "5", '"5"'),
    ("string", "2.50", '"2.50"'),
    ("string", "true", '"true"'),
    ("string", "null", "null"),
    ("string", '{"a": 1}', '{"a": 1}'),
    ("string", '"5"', '"5"'),
    ("object", '"{\\"a\\": [1]}"', '{"a": [1]}'),
    ("object", '"{a}"', '"{a}"'),
    ("object", '"[1]"', '"[1]"'),
    ("array", '"[1, 2]"', "[1, 2]"),
    ("array", '"[1, 2] "', '"[1, 2] "'),
    ("either", '"5"', '"5"'),
    ("unknown", '"5"', '"5"'),
]


@pytest.mark.spec("CHAT-26")
@pytest.mark.parametrize(("kind", "written", "expected"), COERCED)
def test_arguments_are_converted_by_the_schema_only_without_loss(kind, written, expected):
    tools = ToolUse(schemas={"f": KINDS})
    text = '<tool_call>{"name": "f", "arguments": {"x": "5", "%s": %s, "y": 1}}</tool_call>'
    found = read("hermes", text % (kind, written), tools=tools)
    assert found == Read(calls=(call("f", f'{{"x": "5", "{kind}": {expected}, "y": 1}}'),))
    json.loads(found.calls[0][1])


@pytest.mark.spec("CHAT-26")
def test_the_texts_of_tags_become_values_of_the_schemas_type():
    values = {
        "string": "5",
        "integer": "5",
        "number": "much",
        "boolean": "True",
        "object": '{"a": 1}',
        "array": "[1",
        "zz": "1",
    }
    body = "".join(f"<parameter={kind}>\n{value}\n</parameter>\n" for kind, value in values.items())
    text = f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call>"
    ((name, arguments, complete),) = read("qwen3_coder", text, tools=ToolUse(schemas={"f": KINDS})).calls
    assert (name, complete) == ("f", True)
    assert json.loads(arguments) == {
        "string": "5",
        "integer": 5,
        "number": "much",
        "boolean": True,
        "object": {"a": 1},
        "array": "[1",
        "zz": "1",
    }


# --- any text ------------------------------------------------------------------------------------------------------------

SCRAPS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", PARIS, NOW),
        *(
            "{",
            "}",
            "[",
            "]",
            '"',
            ",",
            ":",
            "\n",
            " ",
            "a",
            "now",
            "1",
            "\\",
            "(",
            ")",
            "=",
            '{"name": "now", "arguments": {',
        ),
        *("<function=now>", "</function>", "<parameter=a>", "</parameter>", '"a": "5"', '"days": "3"', "<", "```"),
        *(BEGIN, f"function{SEPARATOR}now\n", END, "now()", "now(a=1)", "any"),
    ]
)


@pytest.mark.spec("CHAT-23")
@given(st.sampled_from(sorted(BY_NAME)), st.lists(SCRAPS, max_size=14).map("".join), st.booleans())
@settings(max_examples=400, deadline=None)
def test_any_text_gives_the_same_whole_and_character_by_character(name, text, opened):
    one = run(name, OPENED if opened else Opening())
    assert feed_whole(text, one) == feed_by_unit(text, one)


@pytest.mark.spec("CHAT-25")
@given(st.sampled_from(sorted(BY_NAME)), st.lists(SCRAPS, max_size=14).map("".join))
@settings(max_examples=200, deadline=None)
def test_a_complete_call_has_arguments_that_are_a_json_object(name, text):
    for _, arguments, complete in feed_whole(text, run(name)).calls:
        assert not complete or isinstance(json.loads(arguments), dict)


JSON_VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=6), st.lists, max_leaves=4)


@pytest.mark.spec("CHAT-25")
@given(st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=3))
@settings(max_examples=60, deadline=None)
def test_arguments_that_are_json_stay_as_they_were_written(arguments):
    written = json.dumps(arguments)
    for name, text in {
        "hermes": f'<tool_call>{{"name": "any", "arguments": {written}}}</tool_call>',
        "mistral": f"[TOOL_CALLS]any[ARGS]{written}",
        "llama3": f'{{"name": "any", "parameters": {written}}}',
    }.items():
        assert feed_by_unit(text, run(name)) == Read(calls=(call("any", written),))


# --- which dialect -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("CHAT-22")
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("qwen3", "qwen3"),
        ("qwen2_5", "hermes"),
        ("qwen3_coder", "qwen3_coder"),
        ("mistral_nemo", "mistral"),
        ("mistral_small_3_2", "mistral"),
        ("deepseek_r1", "deepseek_r1"),
    ],
)
def test_a_real_template_chooses_its_dialect(file, name):
    assert dialect_for((TEMPLATES / f"{file}.jinja").read_text(), {}).name == name


@pytest.mark.spec("CHAT-22")
@pytest.mark.parametrize(
    ("source", "tokens", "name"),
    [
        ("{{ '/no_think' }}<think></think>", {}, "smollm3"),
        ("<|start_header_id|>ipython<|end_header_id|>", {}, "llama3"),
        ("<|start_header_id|>{{ m.role }}", {"<|start_header_id|>": 1}, "llama3"),
        ("[INST]{{ m.content }}", {"[TOOL_CALLS]": 5}, "mistral"),
        ("<|im_start|>{{ m.role }}", {"<|im_start|>": 1}, "plain"),
        ("", {}, "plain"),
    ],
)
def test_traits_of_a_template_and_its_tokens_choose_a_dialect(source, tokens, name):
    assert dialect_for(source, tokens).name == name


@pytest.mark.spec("CHAT-59")
def test_the_registry_ends_with_the_dialect_that_matches_every_model():
    assert DIALECTS[-1].name == "plain"
    assert len(BY_NAME) == len(DIALECTS)


def test_the_settings_name_every_dialect():
    assert tuple(BY_NAME) == DIALECT_NAMES


@pytest.mark.spec("CHAT-22")
def test_a_setting_overrides_what_the_template_says():
    assert dialect_for("<tool_call>", {}, "mistral").name == "mistral"


@pytest.mark.spec("CHAT-65")
@given(st.text())
def test_ids_for_mistral_are_nine_letters_and_digits_and_always_the_same(text):
    assert len(short_id(text)) == 9
    assert short_id(text).isalnum()
    assert short_id(text).isascii()
    assert short_id(short_id(text)) == short_id(text)


@pytest.mark.spec("CHAT-31")
def test_a_reader_knows_which_spellings_steer_it():
    markers = partial(lambda name, tools: BY_NAME[name].open_reader(Opening(), tools).markers)
    assert markers("qwen3", TOOLS) == {"<think>", "</think>", "<tool_call>", "</tool_call>"}
    assert markers("qwen3", None) == {"<think>", "</think>"}
    assert markers("mistral", TOOLS) == {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}
    assert markers("mistral", None) == markers("plain", None) == set()
