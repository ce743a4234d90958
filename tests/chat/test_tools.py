"""Tools, earlier calls, thinking and continued messages on their way into a prompt."""

import json
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chat.templates.test_template import SMOLLM
from tests.chat.test_prompt import EVIL, TINY, USER_TEXT, controls, read, user
from tests.kit.model.tiny_tokenizers import gpt2_metadata, prefixed
from tlserve.chat.dialect import USUAL_FORM, Opening
from tlserve.chat.dialects.mistral import MISTRAL, short_id
from tlserve.chat.dialects.named_calls import DEEPSEEK_R1
from tlserve.chat.messages import Role, Turn, TurnCall
from tlserve.chat.prompt import Rendering, encode_chat
from tlserve.chat.templates.template import DEFAULT_TEMPLATE, Template
from tlserve.chat.thinking import (
    Thinking,
    can_switch_thinking,
    can_take_effort,
    can_tell_levels,
    template_variables,
    unread_variables,
)
from tlserve.errors import ClientError, Refusal
from tlserve.text.tokenizer import build_tokenizer

BYTES = build_tokenizer(prefixed({"model": "bytes"}))
TEMPLATES = {
    path.stem: Template.parse(path.read_text()) for path in (Path(__file__).parent / "templates").glob("*.jinja")
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALLED = [
    user("Weather in Paris?"),
    Turn(Role.ASSISTANT, "", calls=(TurnCall("call_1", "get_weather", {"city": "Paris"}),)),
    Turn(Role.TOOL, "sunny", tool_call_id="call_1"),
]
TWO = attrs.evolve(Template.parse("{{ 'plain' }}"), tool_use=Template.parse("{{ 'tools: ' ~ tools[0].function.name }}"))


@pytest.mark.spec("MOD-97")
def test_a_request_with_tools_is_rendered_by_the_template_for_tools():
    assert encode_chat(TWO, BYTES, [user("Hi")]).text == "plain"
    assert encode_chat(TWO, BYTES, [user("Hi")], Rendering(tools=[WEATHER])).text == "tools: get_weather"
    assert TWO.for_tools is TWO.tool_use


FORMS = {"deepseek_r1": DEEPSEEK_R1.form, "mistral_nemo": MISTRAL.form, "mistral_small_3_2": MISTRAL.form}
CONTROL = {
    "qwen3": ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"],
    "mistral_nemo": [
        "</s>",
        "[TOOL_CALLS]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[INST]",
        "[/INST]",
        "[TOOL_RESULTS]",
    ],
}


def render(name, turns, tokenizer=BYTES, **rendering):
    given = {"form": FORMS.get(name, USUAL_FORM), **rendering}
    return encode_chat(TEMPLATES[name], tokenizer, turns, Rendering(**given))


# --- real templates -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("CHAT-33")
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("qwen3", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'),
        ("qwen2_5", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'),
        (
            "qwen3_coder",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        ),
        ("mistral_nemo", f'{{"name": "get_weather", "arguments": {{"city": "Paris"}}, "id": "{short_id("call_1")}"}}]'),
        ("mistral_small_3_2", f'[TOOL_CALLS]get_weather[CALL_ID]{short_id("call_1")}[ARGS]{{"city": "Paris"}}'),
        ("deepseek_r1", 'get_weather\n```json\n{"city": "Paris"}\n```'),
    ],
)
def test_a_real_template_shows_an_earlier_call_and_its_result(name, shown):
    text = render(name, CALLED, tools=(WEATHER,)).text
    assert shown in text
    assert "sunny" in text[text.index(shown) :]


@pytest.mark.spec("CHAT-33")
@pytest.mark.parametrize("name", ["qwen3", "qwen2_5", "qwen3_coder", "mistral_nemo", "mistral_small_3_2"])
def test_a_real_template_shows_exactly_the_offered_tools(name):
    assert "Tell the weather." in render(name, CALLED[:1], tools=(WEATHER,)).text
    assert "function" not in render(name, CALLED[:1]).text


@pytest.mark.spec("CHAT-37")
def test_reasoning_that_the_client_returns_reaches_the_template():
    turns = [*CALLED[:1], Turn(Role.ASSISTANT, "", reasoning="I look.", calls=CALLED[1].calls), CALLED[2]]
    assert "<think>\nI look.\n</think>" in render("qwen3", turns).text


@pytest.mark.spec("CHAT-37")
@pytest.mark.parametrize("name", ["reasoning_content", "thinking"])
def test_reasoning_reaches_a_template_under_the_name_that_it_reads(name):
    template = Template.parse("{% for m in messages %}{{ m." + name + " }}{% endfor %}")
    turns = [user("x"), Turn(Role.ASSISTANT, "y", reasoning="I look."), user("z")]
    assert encode_chat(template, BYTES, turns).text == "I look."


@pytest.mark.spec("CHAT-37")
@pytest.mark.parametrize(
    ("name", "variables", "template"),
    [
        ("qwen3", {}, "assistant\n"),
        ("qwen3", {"enable_thinking": False}, "</think>\n\n"),
        ("deepseek_r1", {}, "<think>\n"),
    ],
)
def test_the_end_of_the_prompt_is_the_text_of_the_template(name, variables, template):
    opening = render(name, CALLED[:1], variables=variables).opening
    assert opening.template.endswith(template)
    assert opening.is_inside("<think>", "</think>") == (name == "deepseek_r1")


@pytest.mark.spec("CHAT-37", "CHAT-62")
def test_a_prompt_that_ends_in_a_clients_text_opens_nothing():
    template = Template.parse("{% for m in messages %}{{ m.content | trim }}{% endfor %}")
    assert encode_chat(template, BYTES, [user("what is <think> ")]).opening == Opening()


@pytest.mark.spec("CHAT-33")
def test_the_form_of_a_family_is_kept():
    broken = Turn(Role.ASSISTANT, "", calls=(TurnCall("call_1", "f", '{"a": '),))
    assert '"arguments": {"a": ' in render("qwen3", [*CALLED[:1], broken, CALLED[2]]).text
    template = Template.parse(
        "{{ messages[0].content is none }} {{ messages[0].tool_calls[0].function.arguments is string }}"
    )
    assert encode_chat(template, BYTES, CALLED[1:2], Rendering(form=DEEPSEEK_R1.form)).text == "True True"
    assert encode_chat(template, BYTES, CALLED[1:2]).text == "False False"


# --- templates without a place for tools -------------------------------------------------------------------------------


@pytest.mark.spec("CHAT-66")
def test_a_template_without_tools_gets_them_in_the_system_turn():
    plain = Template.parse(SMOLLM)
    for turns in ([user("Hello!")], [Turn(Role.SYSTEM, "Be brief."), user("Hello!")]):
        text = encode_chat(plain, BYTES, turns, Rendering(tools=(WEATHER,))).text
        system = text[: text.index("Hello!")]
        assert json.dumps(WEATHER) in system
        assert "<tool_call>" in system
        assert text.count("system\n") == 1
    assert "Be brief.\n\n# Tools" in text


@pytest.mark.spec("CHAT-75")
def test_a_template_without_calls_gets_them_as_text():
    text = encode_chat(Template.parse(DEFAULT_TEMPLATE), BYTES, CALLED).text
    assert '<|assistant|>\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n' in text


@pytest.mark.spec("CHAT-33")
def test_a_template_can_read_its_tools_as_xml_tools():
    template = Template.parse("{% if xml_tools %}{{ xml_tools | length }}{% endif %}{{ messages | length }}")
    assert encode_chat(template, BYTES, [user("hi")], Rendering(tools=(WEATHER,))).text == "11"


# --- control tokens come from the template alone -------------------------------------------------------------------------


@pytest.mark.spec("CHAT-34")
@pytest.mark.parametrize("name", CONTROL)
@given(USER_TEXT, st.lists(USER_TEXT | st.just("<tool_call>") | st.just("[TOOL_CALLS]"), min_size=6, max_size=6))
@settings(max_examples=40, deadline=None)
def test_no_string_of_tools_calls_and_results_becomes_a_control_token(name, text, parts):
    tokenizer = build_tokenizer(gpt2_metadata(control=CONTROL[name]))

    def turns(a, b, c, d):
        call = TurnCall("abcdefghi", a, {b: [c]})
        return [
            user("x" + d),
            Turn(Role.ASSISTANT, "", calls=(call,)),
            Turn(Role.TOOL, "y" + d, tool_call_id="abcdefghi"),
        ]

    def tool(e, f):
        function = {"name": "f", "description": e, "parameters": {"properties": {f: {"enum": [e]}}}}
        return {"type": "function", "function": function}

    evil = render(name, turns(*parts[:4]), tokenizer, tools=(tool(parts[4], text),))
    calm = render(name, turns("a", "b", "c", "d"), tokenizer, tools=(tool("e", "f"),))
    assert controls(tokenizer, evil.ids) == controls(tokenizer, calm.ids)
    assert read(tokenizer, evil.ids) == evil.text


@pytest.mark.spec("CHAT-34")
def test_ids_and_reasoning_and_arguments_as_text_stay_text():
    template = Template.parse(
        "{% for m in messages %}<|im_start|>{{ m.reasoning_content }}{% for c in m.tool_calls %}{{ c.id ~ c.function.name }}"
        "{{ c.function.arguments }}{{ c.function | tojson }}{% endfor %}<|im_end|>{% endfor %}{{ kwarg }}"
    )
    turns = [
        Turn(
            Role.ASSISTANT,
            "x",
            reasoning=EVIL,
            calls=(TurnCall(EVIL, EVIL, EVIL), TurnCall("i", "n", {EVIL: {"a": EVIL}})),
        )
    ]
    prompt = encode_chat(template, TINY, turns, Rendering(variables={"kwarg": EVIL}))
    assert controls(TINY, prompt.ids) == [1, 2]
    words = encode_chat(Template.parse(SMOLLM), TINY, turns, Rendering(tools=({"name": EVIL},)))
    assert controls(TINY, words.ids) == [1, 2, 1, 2, 1]


# --- continued messages -------------------------------------------------------------------------------------------------


@pytest.mark.spec("CHAT-35")
def test_a_continued_message_is_left_open_as_it_is():
    turns = [user("hi"), Turn(Role.ASSISTANT, "Hel \n")]
    prompt = render("qwen2_5", turns, continue_final=True)
    assert prompt.text.endswith("<|im_start|>assistant\nHel \n")
    assert prompt.opening == Opening(begun="Hel \n")
    trimmed = Template.parse("{% for m in messages %}[{{ m.content | trim }}]{{ m.content | tojson }}{% endfor %}!")
    assert encode_chat(trimmed, BYTES, turns, Rendering(continue_final=True)).text == '[hi]"hi"[Hel]"Hel \\n'


@pytest.mark.spec("CHAT-35")
def test_a_template_that_does_not_show_the_message_cannot_continue_it():
    with pytest.raises(ClientError, match="does not print") as refused:
        encode_chat(Template.parse("x"), BYTES, [Turn(Role.ASSISTANT, "a")], Rendering(continue_final=True))
    assert refused.value.param == "continue_final_message"


@pytest.mark.spec("CHAT-35")
@given(USER_TEXT)
@settings(max_examples=60, deadline=None)
def test_a_continued_message_makes_no_control_token(text):
    prompt = encode_chat(
        Template.parse(SMOLLM), TINY, [user("a"), Turn(Role.ASSISTANT, text)], Rendering(continue_final=True)
    )
    assert controls(TINY, prompt.ids) == [1, 2, 1, 2, 1]
    assert read(TINY, prompt.ids) == prompt.text
    assert prompt.text.endswith(text)


@pytest.mark.spec("CHAT-35")
def test_without_a_generation_prompt_the_template_adds_none():
    text = render("qwen2_5", CALLED[:1], add_generation_prompt=False).text
    assert text.endswith("<|im_end|>\n")
    assert render("qwen2_5", CALLED[:1]).text == text + "<|im_start|>assistant\n"


# --- thinking -----------------------------------------------------------------------------------------------------------

SWITCH = TEMPLATES["qwen3"]
ALWAYS = TEMPLATES["deepseek_r1"]
NEVER = TEMPLATES["qwen2_5"]
LEVELS = Template.parse("{{ reasoning_effort }}{{ messages }}")


@pytest.mark.spec("CHAT-36")
@pytest.mark.parametrize(
    ("template", "thinking", "variables"),
    [
        (SWITCH, Thinking(enabled=False), {"enable_thinking": False}),
        (SWITCH, Thinking(enabled=True), {"enable_thinking": True}),
        (SWITCH, Thinking(effort="none"), {"enable_thinking": False}),
        (ALWAYS, Thinking(enabled=True), {}),
        (NEVER, Thinking(enabled=False), {}),
        (NEVER, Thinking(effort="none"), {}),
        (LEVELS, Thinking(effort="high"), {"reasoning_effort": "high"}),
        (NEVER, Thinking(variables={"a": [1]}), {"a": [1]}),
        (SWITCH, Thinking(enabled=True, variables={"enable_thinking": True}), {"enable_thinking": True}),
        (SWITCH, Thinking(), {}),
    ],
)
def test_the_thinking_options_of_a_request_reach_the_template(template, thinking, variables):
    assert template_variables(template, thinking) == variables


@pytest.mark.spec("CHAT-36")
@pytest.mark.parametrize(
    ("template", "thinking", "param"),
    [
        (ALWAYS, Thinking(enabled=False), "enable_thinking"),
        (ALWAYS, Thinking(effort="none"), "reasoning_effort"),
        (NEVER, Thinking(enabled=True), "enable_thinking"),
        (SWITCH, Thinking(effort="high"), "reasoning_effort"),
        (NEVER, Thinking(effort="low"), "reasoning_effort"),
    ],
)
def test_an_option_that_a_model_lacks_is_refused_by_name(template, thinking, param):
    with pytest.raises(Refusal) as refused:
        template_variables(template, thinking)
    assert refused.value.param == param


@pytest.mark.spec("CHAT-36")
@pytest.mark.parametrize(
    ("thinking", "param"),
    [
        (Thinking(variables={"messages": []}), "chat_template_kwargs"),
        (Thinking(variables={"bos_token": "x"}), "chat_template_kwargs"),
        (Thinking(enabled=True, variables={"enable_thinking": False}), "enable_thinking"),
    ],
)
def test_an_option_given_twice_or_reserved_is_an_error(thinking, param):
    with pytest.raises(ClientError) as refused:
        template_variables(SWITCH, thinking)
    assert refused.value.param == param


@pytest.mark.spec("CHAT-67")
def test_variables_that_no_template_reads_are_reported():
    assert unread_variables(SWITCH, Thinking(variables={"enable_thinking": True, "mood": 1})) == (
        "chat_template_kwargs.mood",
    )


@pytest.mark.spec("CHAT-36")
def test_a_template_says_which_options_it_reads():
    found = {name: (can_switch_thinking(t), can_take_effort(t), can_tell_levels(t)) for name, t in TEMPLATES.items()}
    assert found["qwen3"][:2] == (True, True)
    assert all(isinstance(reason, str) for reason in (found["qwen3"][2], *found["deepseek_r1"]))
    assert (can_take_effort(LEVELS), can_tell_levels(LEVELS)) == (True, True)
