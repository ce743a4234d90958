"""Text of a rendering is that of plain jinja2, and each character knows whether the template or the client wrote it."""

import contextlib
import copy
import json
import re
from typing import Any

import jinja2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tlserve.chat.templates.origin import CLIENT, concat, origin_of, plain_text, template_text, with_origin
from tlserve.chat.templates.template import Template
from tlserve.errors import ClientError


def plain_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


PLAIN = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
PLAIN.filters["tojson"] = plain_json

RULES = [  # source, x, text, letters
    ("<a>{{ x }}</a>", "<a>", "<a><a></a>", "tttccctttt"),
    ("{{ '<' ~ x ~ (1 + 1) ~ '>' }}", "a", "<a2>", "tcct"),
    ("{{ ('<a> ' ~ x)|trim|upper }}", "ß ", "<A> SS", "ttttcc"),
    ("{{ ('q' ~ x ~ 'z')|capitalize }}", "İß", "Qi\u0307ßz", "ccccc"),
    ("{{ (x ~ '<a>').lstrip() }}{{ ('> ' ~ x)|trim('> ') }}", " b", "b<a>b", "cttt" + "c"),
    ("{{ x.partition('<a>')[1] }}{{ x.split('<a>')[1] }}", "b<a>c", "<a>c", "cccc"),
    ("{{ ('<a>' ~ x).partition('<a>')[1] }}", "<a>", "<a>", "ttt"),
    ("{{ x.replace('b', '<a>') }}{{ x|replace('b', '<a>') }}", "cb", "c<a>c<a>", "ctttcttt"),
    ("{{ '<a{}>'.format(x) }}{{ x.format('<a>') }}", "{}", "<a{}><a>", "ttcctccc"),
    ("{{ '<%s>%%' % x }}{{ '<%-3s>' % x }}", "%s", "<%s>%<%s >", "tccttccccc"),
    ("{{ [x, '<a>']|join }}{{ [x, '<a>']|join('-') }}", "<", "<<a><-<a>", "ctttctttt"),
    ("{{ {'<a>': x}|tojson }}{{ {'<a>': x} }}", '"', '{"<a>": "\\""}{\'<a>\': \'"\'}', "cctttcccccccc" + "c" * 12),
    ("{{ x|safe + '<a>' }}{{ '[A]' + (x|tojson|safe) }}", "&", '&&lt;a&gt;[A]"&"', "cttttttttttttccc"),
    ("{% macro m(a) %}<{{ a }}>{% endmacro %}{% set y %}{{ m(x) }}{% endset %}{{ y }}", "a", "<a>", "tct"),
    ("{% for c in '<' ~ x %}{{ c }}{% endfor %}", "a", "<a", "tc"),
    ("{{ ['<a>', '<b>'][0] }}{{ {'k': '<c>'}.k }}{{ ('a' ~ x)|list|join }}", "b", "<a><c>ab", "tttttttc"),
    ("{{ ('<a>' ~ x ~ '\\n<b>')|indent(1) }}", "b", "<a>b\n <b>", "tttcccccc"),
    ("{{ {x: '<a>'}['<b>'] }}{{ x == '<b>' }}{{ '<b>' in x }}", "<b>", "<a>TrueTrue", "ttt" + "c" * 8),
]


@pytest.mark.spec("CHAT-11")
@pytest.mark.parametrize(("source", "typed", "text", "letters"), RULES)
def test_each_character_has_the_letter_of_its_writer(source: str, typed: str, text: str, letters: str) -> None:
    found = Template.parse(source).render({"x": typed})
    assert (plain_text(found), origin_of(found)) == (text, letters)
    assert PLAIN.from_string(source).render(x=typed) == text


def test_a_plain_string_is_the_clients_and_letters_that_do_not_fit_are_dropped() -> None:
    assert origin_of("ab") == CLIENT * 2
    assert origin_of(with_origin("ab", "t")) == CLIENT * 2
    assert origin_of(concat(["a", template_text("b")])) == "ct"


def test_errors_of_python_print_the_name_of_the_type() -> None:
    with pytest.raises(ClientError, match=re.escape('can only concatenate str (not "int") to str')):
        Template.parse("{{ 'a' + 1 }}").render({})


# --- random templates ----------------------------------------------------------------------------------------------------

OURS, SHARED, TYPED = "ZzQq", "imend_ab \n,-", "<|>"
"""Characters that only templates write, that both write, and that only clients write."""

# $s a string, $t a list, $d a mapping, $b a test; $l a literal, $x a client's string, $a what is searched for, $n a number
KEEPING = {
    "s": """$l $x $x ($s+$s) ($s~$s) ($s~$n) ($s*$n) ('Z%sq%%'%$s) ('z%s%s'%($s,$s)) ('%(k)sQ'%{'k':$s}) ($s)[$n] ($s)[$n:]
        ($s)[::-1] ($s).strip() ($s).strip($a) ($s).lstrip($a) ($s).rstrip($a) ($s).upper() ($s).lower() ($s).replace($a,$s)
        ($s).replace($a,$s,1) ($s).split($a)[0] ($s).split($a)[-1] ($s).split($a,1)[-1] ($s).rsplit($a,1)[0] ($s).split()[-1]
        ($s).rsplit(none,1)[0] ($s).partition($a)[0] ($s).partition($a)[2] ($s).rpartition($a)[1] (($s).splitlines()|join($s))
        ($s).removeprefix($s) ($s).removesuffix($s) 'Z{}q{{'.format($s) '{0}{k}{0}'.format($s,k=$s) ($s|trim) ($s|upper)
        ($s|replace($a,$s)) ($s|string) ($s|default($s)) (nope|default($s)) ($s|reverse) ($s|first) ($s|last) ($s|safe)
        ($s|e) ($s+($s|safe)) ($s|tojson) ($s·if·$b·else·$s) ($s·or·$s) ($s).join($t) ($t|join($s)) ($t|join)
        ($t|tojson(indent=1)) ($d|tojson) ($d)['Zk'] ($d).k ($t|first) ($t)[$n] m($s) m(b=$s) v ns.v
        ({'k':$s,'n':$n,'deep':[$s,none,1.5,true,{}]}|tojson) ($t|map('replace',$a,$s)|join($s))""",
    "t": """[$s,$s] [$s] ($s|list) ($s).split($a) ($s).splitlines() y ($t+$t) ($t|unique|list) ($t|select('string')|list)
        ($t)[1:] ($t|reverse|list) ($d|dictsort|map('last')|list) ($d).values()|list ($t|sort)""",
    "d": """{'k':$s,'Zk':$s} {$s:$s} w""",
    "b": """$a·in·($s) ($s)==$s ($s).startswith($a) ($s).endswith($a) ($s)|length>$n ($s)<$s ($t) ($s)·in·($t) true false""",
    "o": """{{$s}} {{$s}} {{-·$s·-}} Zq {%set·v=$s%} {%set·v%}$o{%endset%} {%for·v·in·$s%}{{v}}{{loop.index}}{%endfor%}
        {%for·v·in·$t%}{{v}}{%if·loop.last%}$o{%endif%}{%if·$b%}{%break%}{%endif%}{%endfor%} {%if·$b%}$o{%else%}$o{%endif%}
        {%filter·upper%}$o{%endfilter%} {%call·m('q')%}$o{%endcall%} {%set·ns.v=ns.v+($s)%}
        {%for·k,v·in·($d).items()%}{{k}}={{v}};{%endfor%} {%with·v=$s%}$o{%endwith%}""",
}
FORGETTING = """($s%$s) ('q%5s'%$s) ($s).title() ($s).capitalize() ($s).swapcase() ($s).format($s) 'Z{:>4}'.format($s)
    ($s).center(9) ($s).zfill(5) ($s).expandtabs() ($s|title) ($s|indent(2)) (($s|e)*2)[1:] ($s|truncate(5,true)) ($s|striptags)
    ($s|urlencode) ('Z%sq'|format($s)) ($t|string) ($d|string) ($d|tojson(sort_keys=true)) ($t|max) ($s|tojson(ensure_ascii=true))
    ($s).casefold() ($s|safe|replace($a,$s)) ($s|safe)%$s ($s).join($s) ($s|int)"""
SHORTEST = {"s": ["$l", "$x"], "t": ["[$x,$l]", "y"], "d": ["w"], "b": ["$a·in·$x"], "o": ["Zq"]}
HEAD = (
    "{% macro m(a, b='zq') %}Z{{ a }}{{ b }}{{ caller() if caller else 'Q' }}q{% endmacro %}"
    "{% set ns = namespace(v='Q') %}{% set v = 'z' %}"
)
LEAVES = {
    "l": st.text(OURS * 2 + SHARED, max_size=4).map(repr),
    "x": st.sampled_from(["x0", "x1", "y[0]", "w.k", "w['n']"]),
    "a": st.sampled_from(["<", "|", "a", " ", ",", "im_", "Z", "<|", "-", "\n", "z", "&", "%"]).map(repr),
    "n": st.sampled_from("0123"),
}
PIECES = [
    "<|",
    "|>",
    "<|im_",
    "im_",
    "end|>",
    "<|im_end|>",
    "<",
    "|",
    ">",
    " ",
    "\n",
    "a,b",
    "-",
    "é",
    "İ",
    "ß",
    "'",
    "&",
    "%s",
    "{}",
]
CLIENT_TEXT = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join)


@st.composite
def random_templates(draw: Any, forgetting: bool) -> str:
    kinds = {kind: words.split() for kind, words in KEEPING.items()}
    kinds["s"] += FORGETTING.split() if forgetting else []

    def fill(kind: str, depth: int) -> str:
        if kind in LEAVES:
            word: str = draw(LEAVES[kind])
            return word
        pattern = draw(st.sampled_from((kinds if depth else SHORTEST)[kind]))
        return re.sub(r"\$([lxanstdbo])", lambda found: fill(found[1], depth - (depth > 0)), pattern).replace("·", " ")

    return HEAD + "".join(fill("o", 3) for _ in range(draw(st.integers(2, 4))))


def both_renderings(source: str, texts: list[str]) -> tuple[str | None, str | None]:
    """Return the text of plain jinja2 and ours, None for a failure."""
    known = {"x0": texts[0], "x1": texts[1], "y": texts[:3], "w": {"k": texts[2], texts[0]: texts[1], "n": texts[3]}}
    expected, found = None, None
    with contextlib.suppress(jinja2.TemplateError, TypeError, ValueError, IndexError, KeyError, OverflowError):
        expected = PLAIN.from_string(source).render(copy.deepcopy(known))
    with contextlib.suppress(ClientError):
        found = Template.parse(source).render(known)
    return expected, found


def without_address(text: str | None) -> str | None:
    """Return a text without the address of an object that a template has printed."""
    return text if text is None or " at 0x" not in text else ADDRESS.sub("0x0", text)


def checked_letters(source: str, texts: list[str]) -> list[tuple[str, str]]:
    """Return the characters with their letters; the text is that of jinja2, and what only clients type is the client's."""
    expected, found = both_renderings(source, texts)
    assert without_address(found) == without_address(expected)
    pairs = list(zip(plain_text(found or ""), origin_of(found or ""), strict=True))
    assert not any(char in TYPED and letter != CLIENT for char, letter in pairs)
    return pairs


ADDRESS = re.compile(r"\b0x[0-9a-f]+")
EXAMPLES = settings(max_examples=250, suppress_health_check=list(HealthCheck))


@pytest.mark.spec("CHAT-10", "CHAT-11")
@EXAMPLES
@given(random_templates(forgetting=False), st.lists(CLIENT_TEXT, min_size=4, max_size=4))
def test_a_random_template_writes_its_characters_and_the_client_the_others(source: str, texts: list[str]) -> None:
    pairs = checked_letters(source, texts)
    assert not any(char in OURS and letter == CLIENT for char, letter in pairs)


@pytest.mark.spec("CHAT-10", "CHAT-11")
@EXAMPLES
@given(random_templates(forgetting=True), st.lists(CLIENT_TEXT, min_size=4, max_size=4))
def test_operations_that_forget_who_wrote_a_character_say_that_it_was_the_client(source: str, texts: list[str]) -> None:
    checked_letters(source, texts)
