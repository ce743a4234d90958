"""Tools in words: templates without a place for tools, and those that print no system turn, or no results of calls."""

import pytest

from tests.chat.templates.test_template import SMOLLM
from tests.chat.test_prompt import user
from tests.chat.test_tools import BYTES, CALLED
from tests.kit.source_tree import GOLDEN
from tlserve.chat.dialects.registry import find_dialect
from tlserve.chat.messages import Role, Turn
from tlserve.chat.prompt import Rendering, encode_chat
from tlserve.chat.templates.template import Template
from tlserve.errors import ClientError

MISTRAL_V0_2 = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %"
    "}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{"
    "% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role']"
    " == 'assistant' %}{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistan"
    "t roles are supported!') }}{% endif %}{% endfor %}"
)
"""Of Mistral-7B-Instruct-v0.2 before it took a system turn, as in llama.cpp's tests."""
GEMMA_2 = (GOLDEN / "templates/google-gemma-2-2b-it.jinja").read_text("utf-8")
PHI_3_5 = (GOLDEN / "templates/microsoft-Phi-3.5-mini-instruct.jinja").read_text("utf-8")
DROPPING = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
NOW = Rendering(tools=[{"type": "function", "function": {"name": "now"}}])


@pytest.mark.spec("CHAT-66")
@pytest.mark.parametrize("source", [MISTRAL_V0_2, GEMMA_2, DROPPING], ids=["mistral 0.2", "gemma 2", "drops"])
def test_tools_go_into_the_first_user_turn_if_the_template_prints_no_system_turn(source):
    template = Template.parse(source)
    assert not template.takes_system
    text = encode_chat(template, BYTES, [user("What time is it?")], NOW).text
    assert text.index('"now"') < text.index("What time is it?")


@pytest.mark.spec("CHAT-66", "CHAT-6")
@pytest.mark.parametrize(
    ("source", "sentence"),
    [(MISTRAL_V0_2, "Conversation roles must alternate"), (GEMMA_2, "System role not supported")],
    ids=["mistral 0.2", "gemma 2"],
)
def test_a_system_turn_of_the_client_is_refused_in_the_words_of_the_template(source, sentence):
    for rendering in (NOW, Rendering()):
        with pytest.raises(ClientError, match=sentence):
            encode_chat(Template.parse(source), BYTES, [Turn(Role.SYSTEM, "Be brief."), user("x")], rendering)


@pytest.mark.spec("CHAT-66")
def test_tools_are_shown_where_the_template_drops_the_system_turn_of_the_client():
    text = encode_chat(Template.parse(DROPPING), BYTES, [Turn(Role.SYSTEM, "Be brief."), user("x")], NOW).text
    assert "Be brief." not in text
    assert '"now"' in text


@pytest.mark.spec("CHAT-78")
@pytest.mark.parametrize("source", [MISTRAL_V0_2, GEMMA_2, PHI_3_5], ids=["mistral 0.2", "gemma 2", "phi 3.5"])
def test_results_are_a_turn_of_the_user_where_the_template_does_not_print_them(source):
    template = Template.parse(source)
    assert not template.takes_results
    results = [Turn(Role.TOOL, f"result {n}", tool_call_id=f"call_{n}") for n in (1, 2)]
    for after in ([], [user("And now?")], [Turn(Role.ASSISTANT, "21 degrees."), user("And now?")]):
        turns = [user("Weather?"), CALLED[1], *results, *after]
        text = encode_chat(template, BYTES, turns, NOW).text
        places = [text.find(part) for part in ("Weather?", '"get_weather"', "result 1", "result 2")]
        places += [text.find(turn.text) for turn in after]
        assert -1 not in places
        assert places == sorted(places)
        assert "<tool_response>\nresult 1\n</tool_response>\n<tool_response>\nresult 2" in text


@pytest.mark.spec("CHAT-78")
def test_results_stay_their_own_turn_where_the_template_prints_them():
    template = Template.parse(SMOLLM)
    assert template.takes_results
    assert "<|im_start|>tool\n" in encode_chat(template, BYTES, CALLED, NOW).text
    assert "<tool_response>" not in encode_chat(template, BYTES, CALLED, NOW).text


@pytest.mark.spec("CHAT-33")
def test_calls_of_an_unknown_form_get_arguments_as_the_template_takes_them():
    source = (GOLDEN / "templates/meetkai-functionary-medium-v3.2.jinja").read_text("utf-8")
    template = Template.parse(source)
    found = find_dialect(template, {})
    text = encode_chat(template, BYTES, CALLED, Rendering(form=found.dialect.form, tools=NOW.tools)).text
    assert 'get_weather\n{"city": "Paris"}' in text
