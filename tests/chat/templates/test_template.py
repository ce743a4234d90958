"""Chat templates: renderings equal to transformers', refusals at parse, and limits while rendering."""

import json
from datetime import datetime

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.kit.source_tree import GOLDEN
from tlserve.chat.templates.limits import MAX_SOURCE_CHARS
from tlserve.chat.templates.template import DEFAULT_TEMPLATE, Template
from tlserve.errors import ClientError, ModelRefused

SMOL = json.loads((GOLDEN / "smol-135m.json").read_text(encoding="utf-8"))
SMOLLM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MESSAGES = [{"role": "user", "content": "Hi"}]


def render(source, **variables):
    return Template.parse(source).render({"messages": MESSAGES, **variables})


def message(role, content):
    return {"role": role, "content": content}


@pytest.mark.spec("CHAT-2")
def test_chat_template_hand_example():
    default = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    hi = "<|im_start|>user\nHi<|im_end|>\n"
    assert render(SMOLLM, add_generation_prompt=True) == default + hi + "<|im_start|>assistant\n"
    assert render(SMOLLM) == default + hi
    own = [message("system", "Be brief."), *MESSAGES]
    assert render(SMOLLM, messages=own) == "<|im_start|>system\nBe brief.<|im_end|>\n" + hi
    assert render(DEFAULT_TEMPLATE, add_generation_prompt=True) == "<|user|>\nHi\n<|assistant|>\n"
    assert render("{{ messages[0].content | upper }}{{ ' x ' | trim }}") == "HIx"
    branches = "{% if i == 1 %}a{% elif i == 2 %}b{% else %}c{% endif %}{% if not loop.last %},{% endif %}"
    assert render("{% for i in [1, 2, 3] %}" + branches + "{% endfor %}") == "a,b,c"
    assert render("a  {%- if true -%}  b  {%- endif -%}  c") == "abc"


@pytest.mark.parametrize(
    "case", [case for case in SMOL if case["name"] in {"hi", "france", "list", "code"}], ids=lambda c: c["name"]
)
def test_the_real_template_renders_the_golden_prompts(case):
    user = case["text"].split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
    assert render(SMOLLM, messages=[message("user", user)], add_generation_prompt=True) == case["text"]


@pytest.mark.spec("CHAT-2")
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if true %}\n  x\n{% endif %}\ny\n", "  x\ny"),
        ("   {% if true %}x{% endif %}", "x"),
        (
            "{% for i in range(9) %}{% if i == 3 %}{% break %}{% elif i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        ("{% generation %}{% set x = 1 %}said{% endgeneration %}", "said"),
        ("{{ {'b': '<é>', 'a': [1, none, true]} | tojson }}", '{"b": "<é>", "a": [1, null, true]}'),
        (
            "{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=true, sort_keys=true, indent=1) }}",
            '{\n "a": "\\u00e9",\n "b": 1\n}',
        ),
        ("{{ strftime_now('%Y-%m-%d') }}", "2024-02-29"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{% macro f(x, y='b') %}{{ x ~ y }}{% endmacro %}{{ f('a') }}{{ f('a', y='c') }}", "abac"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('-') }}", "Hi"),
        ("{{ messages[0].content.split('i') | first }}{{ messages[-1]['content'][1:] }}", "Hi"),
        (
            "{{ messages[0].missing is defined }}{{ tools is none }}{{ 'x' in ['x'] }}{{ 'd' if false else 'e' }}",
            "FalseTrueTruee",
        ),
        ("{{ '%s-%02d' % ('a', 3) }}{{ '{}:{:>3}'.format('b', 4) }}{{ '%s' | format('c') }}", "a-03b:  4c"),
        ("{%- for m in messages recursive %}{{ m.content }}{% endfor %}", "Hi"),
        ("{% filter upper %}a{% endfilter %}", "A"),
        (
            "{{ 'a,b'.split(',') | list | length }}{{ [3, 1] | sort | first }}{{ {'k': 1}.items() | list }}",
            "21[('k', 1)]",
        ),
        ("{{ 7 // 2 }}{{ 2 ** 3 }}{{ 7 % 4 }}{{ -1 | abs }}{{ 'ab' * 2 }}{{ [1] + [2] }}", "3831abab[1, 2]"),
        ("{{ '<b>' }}{{ '<b>' | e }}", "<b>&lt;b&gt;"),
        ("{# a comment #}{% raw %}{{ x }}{% endraw %}", "{{ x }}"),
    ],
)
def test_the_template_language_is_that_of_transformers(source, text):
    assert (
        Template.parse(source).render({"messages": MESSAGES, "tools": None}, clock=lambda: datetime(2024, 2, 29))
        == text
    )


UNCOUNTED = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
CONVERSATIONS = (
    MESSAGES,
    [message("system", " Be brief. "), *MESSAGES, message("assistant", "Yes?"), message("user", "<b>\n\nBye")],
)


@pytest.mark.spec("CHAT-2")
@pytest.mark.parametrize("messages", CONVERSATIONS, ids=["one turn", "four turns"])
@pytest.mark.parametrize(
    "source",
    [
        SMOLLM,
        DEFAULT_TEMPLATE,
        "{% for m in messages %}\n  {% if not loop.last %}"
        "{{ loop.index ~ '/' ~ loop.length }}{% else %}end{% endif %}\n\n{% endfor %}",
        "{% macro say(m, sep='|') -%}\n [{{ sep }}{{ m.content | trim }}{{ caller() if caller }}]\n{%- endmacro %}"
        "{% for m in messages if m.role != 'system' %}{{ say(m) }}{% call say(m, sep='!') %}c{% endcall %}{% endfor %}",
        "{% set ns = namespace(last=-1, parts=[]) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.last = loop.index0 %}{% set ns.parts = ns.parts + [m.content] %}"
        "{% endif %}{% endfor %}{{ ns.last }}{{ ns.parts }}",
        "{% set first, rest = messages[0], messages[1:] %}{{ first.role }}"
        "{% for m in rest[::-1] %}{{ m['role'][:4] }}{% endfor %}",
        "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}"
        "{{ messages | groupby('role') | map('first') | join(',') }}",
        "{% set body %}<{{ messages[-1].content }}>{% endset %}"
        "{{ body | replace('b', 'B') | upper }}{{ body | length > 3 }}",
        "{{ messages | map(attribute='content') | map('trim') | select('in', ['Hi', 'Bye']) | list }}"
        "{{ messages[9] is undefined }}",
        "{% with a = 1, b = (1, 2) %}{{ a + b[1] }}{{ b }}{% endwith %}"
        "{{ '%s=%d' | format('x', 3) }}{{ -7 // 2 }}{{ 7 / 2 }}",
        "{{ messages[0].content is string and messages is sequence and messages[0] is mapping and none is none }}",
    ],
)
def test_counting_changes_no_rendering(source, messages):
    variables = {"messages": messages, "add_generation_prompt": True}
    assert Template.parse(source).render(variables) == UNCOUNTED.from_string(source).render(variables)


@pytest.mark.spec("CHAT-3")
def test_template_errors_are_caught_at_parse():
    for source in (
        "{% for m in messages %}",
        "{% if x %}{% endfor %}",
        "{{ x",
        "{{ x | }}",
        "{% frobnicate %}",
        "{{ x | frobnicate }}",
        "{% if false %}{{ x | frobnicate }}{% endif %}",
        "{% if x is frobnicate %}{% endif %}",
        "{% if false %}{% if x is frobnicate %}{% endif %}{% endif %}",
        "{% macro f() %}{% filter frobnicate %}{% endfilter %}{% endmacro %}",
        "{{ x | map('frobnicate') }}",
        "{{ x | selectattr('a', 'frobnicate') }}",
        "{{ x | random }}",
    ):
        with pytest.raises(ModelRefused) as refused:
            Template.parse(source)
        assert refused.value.message.startswith("the chat template")


@pytest.mark.spec("CHAT-3")
def test_a_refusal_names_the_unknown_thing_and_its_line():
    with pytest.raises(ModelRefused, match=r"no filter named 'frobnicate' \(line 2\)"):
        Template.parse("{% if false %}\n{{ x | frobnicate }}{% endif %}")


@pytest.mark.spec("CASE-24", "CHAT-4")
@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__['os'] }}",
        "{{ self.__init__.__globals__ }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{% if false %}{{ messages.__class__ }}{% endif %}",
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{% from 'x' import y %}",
        "{% extends 'x' %}",
        "{% autoescape true %}{% endautoescape %}",
        "x" * (MAX_SOURCE_CHARS + 1),
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
        "{{ " + "9" * 5000 + " }}",
        "{% if x %}" * 500 + "{% endif %}" * 500,
    ],
    ids=range(16),
)
def test_attribute_access_and_unneeded_features_are_refused_at_parse(source):
    with pytest.raises(ModelRefused):
        Template.parse(source)


@pytest.mark.spec("CHAT-55")
@pytest.mark.parametrize(
    "source",
    [
        "{{ (''['__cla' ~ 'ss__']).x }}",
        "{{ (messages | attr('__cla' ~ 'ss__')).x }}",
        "{{ (cycler['__in' ~ 'it__'])['__glo' ~ 'bals__'].os }}",
        "{{ lipsum() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
        "{{ 'a'.encode('utf-16') }}",
        "{{ raise_exception.x.y }}",
        "{{ ('{0.__class__.x}').format(messages).x.y }}",
        "{{ self._TemplateReference__context.x }}",
        "{{ missing.member }}",
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
    ],
)
def test_an_error_while_rendering_is_an_error_of_the_request(source):
    with pytest.raises(ClientError) as failed:
        render(source)
    assert (failed.value.param, "template" in failed.value.message) == ("messages", True)


DOUBLING = (
    "{{% set ns = namespace(s='a') %}}{{% for i in range(60) %}}{{% set ns.s = {} %}}{{% endfor %}}{{{{ ns.s }}}}"
)
HUNDRED_THOUSAND = "{% set r = range(100000) | list %}{% for i in r %}"


@pytest.mark.slow
@pytest.mark.spec("CASE-24", "CHAT-5")
@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * 'a' }}",
        "{{ [1] * 10**9 }}",
        "{{ ('a' * 10**6) * 10**3 }}",
        "{{ 10 ** 10000 }}",
        "{{ 2 ** 4000 * 2 ** 4000 }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}" + "x" * 1000 + "{% endfor %}",
        "{% set x %}" + "x" * 1000 + "{% endset %}{% for i in range(100000) %}{{ x }}{% endfor %}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(x) %}{% if x %}{{ f(x - 1) }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        DOUBLING.format("ns.s ~ ns.s"),
        DOUBLING.format("ns.s + ns.s"),
        DOUBLING.format("[ns.s, ns.s]"),
        DOUBLING.format("(ns.s, ns.s)"),
        DOUBLING.format("{'a': ns.s, 'b': ns.s}"),
        DOUBLING.format("'%s%s' % (ns.s, ns.s)"),
        DOUBLING.format("'{0}{0}'.format(ns.s)"),
        DOUBLING.format("namespace(a=ns.s, b=ns.s)"),
        "{% set ns = namespace() %}{% set ns.s = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.s = ns %}{{ ns | string }}",
        "{{ '%1000000000d' % 5 }}",
        "{{ '%(a)1000000000d' % {'a': 5} }}",
        "{{ '%*d' % (1000000000, 5) }}",
        "{{ '%1000000000d' | format(5) }}",
        "{{ '{:1000000000}'.format(5) }}",
        "{{ '{:{}}'.format(5, 1000000000) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ 'a\t'.expandtabs(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ ('a' * 10**6).replace('a', 'a' * 10**6) }}",
        "{{ ('a' * 10**6) | replace('a', 'a' * 10**6) }}",
        "{{ ('b' * 10**5).join(['a'] * 10**5) }}",
        "{{ ('b' * 10**5).join((['a'] * 10**4) | map('upper')) }}",
        "{{ (['a'] * 10**4) | join('b' * 10**5) }}",
        "{{ ('a\n' * 10**5) | indent(10**5) }}",
        "{{ ('a ' * 10**5) | wordwrap(1, wrapstring='b' * 10**5) }}",
        "{% for i in range(99) %}{% set x = ('ab ' * 10**6) | wordwrap(3) %}{% endfor %}",
        "{% for i in range(9999) %}{% set x = ('<' * 10**6) | striptags | title | wordcount %}{% endfor %}",
        "{% for i in range(9999) %}{% set x = ('ab ' * 10**6).split() %}{% endfor %}",
        "{% for i in range(9999) %}{% set x = ('ab ' * 10**6) | sort | list %}{% endfor %}",
        "{{ [1] | batch(10**9, 0) | list }}",
        "{{ [1] | slice(10**9) | list }}",
        "{{ 1 | round(10**9) }}",
        "{{ [1] | tojson(indent=10**6) }}",
        "{{ ([[1]] * 1000) | sum(start=[]) }}",
        "{{ strftime_now('%1000000000Y') }}",
        HUNDRED_THOUSAND + "{% for x in r if false %}{% endfor %}{% endfor %}",
        HUNDRED_THOUSAND + "{% if -1 in r %}{% endif %}{% endfor %}",
        HUNDRED_THOUSAND + "{% if r is eq(r[1:]) %}{% endif %}{% endfor %}",
        HUNDRED_THOUSAND + "{% set x = r[1:] %}{% endfor %}",
        HUNDRED_THOUSAND + "{% set x = r | sum %}{% endfor %}",
        "{% for i in range(100000) %}{% set x = range(100000) | sum %}{% endfor %}",
    ],
)
def test_a_template_cannot_exceed_its_limits(source):
    with pytest.raises(ClientError) as failed:
        render(source)
    assert "template" in failed.value.message


NEARLY = "{% set text = 'a' * 2400 %}{% set wanted = 'a' * 1200 ~ 'b' %}{% for i in range(100000) %}"


@pytest.mark.slow
@pytest.mark.spec("CHAT-5")
@pytest.mark.parametrize(
    "source",
    [
        *(
            f"{{{{ ('a' * 10**6).{method}('b' + 'a' * 10**5) }}}}"
            for method in ("rfind", "rindex", "rsplit", "rpartition")
        ),
        "{{ ('a' * 10**6).strip('b' * 10**6) }}",
        "{{ ('a' * 10**6) | trim('b' * 10**6) }}",
        *(
            NEARLY + "{% set x = text." + call + " %}{% endfor %}"
            for call in (
                "find(wanted)",
                "count(wanted)",
                "split(wanted)",
                "partition(wanted)",
                "replace(wanted, '')",
                "rfind(wanted, 0)",
            )
        ),
        NEARLY + "{% set x = text | replace(wanted, '') %}{% endfor %}",
        NEARLY + "{% if wanted in text %}{% endif %}{% endfor %}",
        NEARLY + "{% if wanted not in text %}{% endif %}{% endfor %}",
        NEARLY + "{% if wanted is in(text) %}{% endif %}{% endfor %}",
        "{% set text = 'a' * 8000000 %}{% for i in range(9999) %}{% set x = text.isascii() %}{% endfor %}",
        "{% set text = 'a' * 8000000 %}{% for i in range(9999) %}{% set x = text.startswith('b') %}{% endfor %}",
        "{% set l = ['a' * 10**5] * 80 %}{% set x = 'a' * 10**5 %}{% for i in range(99999) %}"
        "{% if l.count(x) %}{% endif %}{% endfor %}",
        "{% set l = ['a' * 10**5] * 80 %}{% set k = ['a' * 10**5] * 80 %}{% for i in range(99999) %}"
        "{% if l == k %}{% endif %}{% endfor %}",
        "{% set l = ['a' * 10**5] * 80 %}{% for i in range(99999) %}{% set x = l | sort %}{% endfor %}",
        "{{ ('<!-- -->' * 10**5) | striptags }}",
        "{{ ('%(' * 10**6) % {} }}",
        "{{ (5).to_bytes(10**9, 'big') }}",
        "{% set ns = namespace(s=range(1000) | list) %}{% for i in range(500) %}{% set ns.s = [ns.s] %}{% endfor %}"
        "{{ ns.s | tojson(indent=64) }}",
    ],
)
def test_one_call_cannot_exceed_the_limits(source):
    with pytest.raises(ClientError) as failed:
        render(source)
    assert "template" in failed.value.message


def test_searches_in_a_long_conversation_are_within_the_limits():
    source = (
        "{% for m in messages %}{% if '</think>' in m.content %}"
        "{{ m.content.split('</think>')[-1].lstrip('\n').rstrip() }}"
        "{{ m.content.rfind('\n') }}{{ m.content | replace('<think>', '') | trim }}{% endif %}{% endfor %}"
    )
    messages = [message("assistant", "<think>" + "x" * 500 + "</think>\n" + "y" * 500)] * 1000
    assert len(render(source, messages=messages)) > 1_500_000


@pytest.mark.spec("CHAT-5")
def test_a_long_conversation_is_within_the_limits():
    source = (
        "{% for m in messages %}{% set index = (messages | length - 1) - loop.index0 %}"
        "{% if index > 3 and m.role == 'user' and m.content is string and not m.content.startswith('<') %}"
        "{{ m.content | trim }}{% endif %}"
        "{{ '<|im_start|>' ~ m.role ~ m.content + '\n' }}{% endfor %}"
    )
    messages = [message("user", "x" * 1000)] * 3000
    assert len(render(source, messages=messages)) > 3_000_000


@pytest.mark.spec("CHAT-6")
def test_raise_exception_is_the_templates_own_sentence():
    with pytest.raises(ClientError) as refused:
        render("{{ raise_exception('Conversation roles must alternate user/assistant/...') }}")
    assert refused.value.message == "Conversation roles must alternate user/assistant/..."


@pytest.mark.spec("CHAT-7")
def test_a_rendering_leaves_nothing_to_the_next():
    template = Template.parse("{% set ns = namespace(x=0) %}{% set ns.x = ns.x + 1 %}{{ ns.x }}{% set y = 1 %}{{ z }}")
    assert [template.render({}) for _ in range(3)] == ["1"] * 3


@pytest.mark.spec("CHAT-7")
def test_a_rendering_does_not_change_the_messages():
    messages = [message("user", "Hi")]
    with pytest.raises(ClientError):
        render("{{ messages.pop() }}", messages=messages)
    assert messages == [message("user", "Hi")]
