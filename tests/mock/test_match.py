"""The choice of a turn: by the conversation alone, equal for each API, and a miss that says where it differs."""

import pytest

from tlserve.errors import ClientError
from tlserve.mock.conversation import Speaker
from tlserve.mock.match import Found, Miss, choose
from tlserve.mock.readers import READERS
from tlserve.mock.script import parse_script

ARGS = '{"city":"Paris"}'
SCRIPT = parse_script(
    {
        "talk": [
            {
                "name": "weather",
                "user": "weather in Paris",
                "turn": [
                    {"expect": {"tools": ["get_weather"], "system": "~brief"}, "calls": [{"name": "get_weather"}]},
                    {"expect": {"result": {"get_weather": "~21"}}, "say": "21 degrees."},
                ],
            },
            {"name": "echo", "user": "~repeat", "answer": "echo"},
        ]
    }
)
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": ARGS}}
OLLAMA_CALL = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
FUNCTION = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
USER = {"role": "user", "content": "weather in Paris"}
SYSTEM = {"role": "system", "content": "be brief"}


def chat(result=None):
    after = [{"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}]
    after += [{"role": "tool", "tool_call_id": "c1", "content": result}]
    return {"model": "m", "tools": [FUNCTION], "messages": [SYSTEM, USER, *(after if result else ())]}


def ollama(result=None):
    after = [{"role": "assistant", "content": "", "tool_calls": [OLLAMA_CALL]}]
    after += [{"role": "tool", "tool_name": "get_weather", "content": result}]
    return {"model": "m", "tools": [FUNCTION], "messages": [SYSTEM, USER, *(after if result else ())]}


def messages(result=None):
    use = {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Paris"}}
    found = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": result}]}
    after = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [found]}]
    tools = [{"name": "get_weather", "input_schema": {}}]
    return {"model": "m", "system": "be brief", "tools": tools, "messages": [USER, *(after if result else ())]}


def responses(result=None):
    call = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": ARGS}
    output = {"type": "function_call_output", "call_id": "c1", "output": result}
    thought = {"type": "reasoning", "summary": []}
    items = [USER, *((thought, call, output) if result else ())]
    tools = [{"type": "function", "name": "get_weather"}]
    return {"model": "m", "instructions": "be brief", "tools": tools, "input": items}


BODIES = {"/v1/chat/completions": chat, "/api/chat": ollama, "/v1/messages": messages, "/v1/responses": responses}


@pytest.mark.spec("KIT-4")
@pytest.mark.parametrize(("path", "body"), BODIES.items())
def test_the_same_conversation_gets_the_same_turn_through_each_api(path, body):
    first = choose(SCRIPT, READERS[path](body()))
    second = choose(SCRIPT, READERS[path](body("it is 21 C")))
    assert isinstance(first, Found)
    assert isinstance(second, Found)
    assert (first.name, second.name) == ("weather/1", "weather/2")


@pytest.mark.spec("KIT-4")
def test_the_conversations_of_all_apis_with_ids_are_equal():
    told = [READERS[path](body("it is 21 C")) for path, body in BODIES.items() if body is not ollama]
    assert told[0] == told[1] == told[2]
    assert [message.role for message in told[0].messages] == [
        Speaker.SYSTEM,
        Speaker.USER,
        Speaker.ASSISTANT,
        Speaker.TOOL,
    ]


@pytest.mark.spec("KIT-5")
def test_the_parts_of_one_answer_count_once_and_an_unfinished_one_not_at_all():
    call = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": ARGS}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]}
    body = {"input": [USER, said, call, {**call, "call_id": "c2"}]}
    assert READERS["/v1/responses"](body).answers == 0
    body["input"].append({"type": "function_call_output", "call_id": "c1", "output": "21"})
    assert READERS["/v1/responses"](body).answers == 1


@pytest.mark.spec("KIT-5")
def test_turns_count_from_the_last_message_of_the_user():
    earlier = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    body = chat()
    body["messages"] = [*earlier, *body["messages"]]
    found = choose(SCRIPT, READERS["/v1/chat/completions"](body))
    assert isinstance(found, Found)
    assert found.name == "weather/1"


def reason(body, path="/v1/chat/completions"):
    miss = choose(SCRIPT, READERS[path](body))
    assert isinstance(miss, Miss)
    return miss.reason


@pytest.mark.spec("KIT-6")
def test_a_miss_names_the_nearest_turn_and_the_first_difference():
    ask = {"messages": [{"role": "user", "content": "weather in Parsi"}]}
    assert reason(ask) == (
        "the nearest talk is 'weather', which differs: user is 'weather in Paris', the request has 'weather in Parsi'"
    )
    near = "the nearest turn is weather/"
    assert reason(chat("19")) == f"{near}2, which differs: expect.result.get_weather is '~21', the request has '19'"
    loud = chat() | {"messages": [USER]}
    assert reason(loud) == f"{near}1, which differs: expect.system is '~brief', the request has ''"
    bare = chat() | {"tools": []}
    assert reason(bare) == f"{near}1, which differs: expect.tools has 'get_weather', the request offers []"
    ended = chat("21")
    ended["messages"] += [{"role": "assistant", "content": "21 degrees."}, {"role": "tool", "content": "x"}]
    assert reason(ended).startswith("the talk 'weather' has 2 turns, and the conversation has 2 answers")


@pytest.mark.spec("KIT-6")
def test_a_long_message_is_cut_in_the_reason():
    said = reason({"messages": [{"role": "user", "content": "x" * 1_000_000}]})
    assert len(said) < 500


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["please repeat"]}),
        ("/api/generate", {"prompt": "please repeat"}),
        ("/v1/embeddings", {"input": ["please", "repeat"]}),
        ("/api/embeddings", {"prompt": "repeat"}),
        ("/v1/responses", {"input": "repeat"}),
    ],
)
def test_prompts_and_inputs_are_the_message_of_the_user(path, body):
    found = choose(SCRIPT, READERS[path](body))
    assert isinstance(found, Found)
    assert found.name == "echo"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/chat/completions", {"messages": ["x"]}, "messages.0"),
        ("/v1/chat/completions", {"messages": [{"role": []}]}, "messages.0.role"),
        ("/v1/messages", {"messages": [{"role": "user", "content": 7}]}, "messages.0.content"),
        ("/v1/responses", {"input": 7}, "input"),
        ("/v1/completions", {"prompt": [1, 2]}, "prompt"),
        ("/v1/embeddings", {"input": [[1]]}, "input"),
        ("/v1/chat/completions", {"model": 7, "messages": []}, "model"),
    ],
)
def test_a_body_without_a_conversation_is_refused_by_its_field(path, body, param):
    with pytest.raises(ClientError) as refused:
        READERS[path](body)
    assert refused.value.param == param
