"""Undefined values in filters, arguments and operators: what transformers makes of them."""

import jinja2
import pytest

from tests.chat.templates.test_origin import PLAIN
from tlserve.chat.templates.template import Template
from tlserve.errors import ClientError

FILTERS = (
    *(
        "trim",
        "upper",
        "lower",
        "title",
        "capitalize",
        "string",
        "list",
        "length",
        "first",
        "last",
        "reverse | list",
        "join",
    ),
    *(
        "items | list",
        "unique",
        "sort",
        "default('d')",
        "replace('a', 'b')",
        "indent(2)",
        "wordcount",
        "safe",
        "e",
        "int",
        "tojson",
    ),
    *("map('upper') | list", "select('string') | list", "selectattr('a') | list", "join(', ')", "truncate(5)"),
)
OTHERS = (
    "{{ 'a,b' | join(nope) }}",
    "{{ 'ab' | replace('a', nope) }}",
    "{{ 'aXb' | default(nope) }}",
    "{{ 'ab'.strip(nope) }}",
    "{{ 'ab'.replace('a', nope) }}",
    "{{ 'ab'.startswith(nope) }}",
    "{{ '%s' % nope }}{{ '{}'.format(nope) }}",
    "{{ 'a' ~ nope ~ 'b' }}",
    "{{ 'a' + nope }}",
    "{{ nope + 'a' }}",
    "{{ nope == 'a' }}{{ 'a' in nope }}{{ nope in ['a'] }}",
    "{{ nope == nope }}{{ nope != none }}{{ not nope }}",
    "{% for x in nope %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in nope if x %}{{ x }}{% endfor %}",
    "{{ nope.member }}",
    "{{ message.nope }}|{{ message['nope'] }}|{{ message.get('nope') }}",
    "{{ message.nope.deeper }}",
    "{{ nope() }}",
    "{{ nope[0] }}{{ nope[1:] }}",
    "{{ message.nope | trim }}{{ message.nope.strip() }}",
    "{{ namespace(a=nope).a }}{{ dict(a=nope).a }}",
    "{% macro m(a, b='z') %}{{ a }}{{ b }}{{ a | trim }}{% endmacro %}{{ m(nope) }}{{ m(nope, nope) }}{{ m() }}",
    "{{ [nope, 'a'] | join(',') }}{{ [nope] | tojson }}",
    "{{ nope | int + 1 }}{{ nope < 1 }}",
)


def outcome(render):
    try:
        return str(render())
    except (jinja2.TemplateError, TypeError, AttributeError, ClientError):
        return None


@pytest.mark.spec("CHAT-2")
@pytest.mark.parametrize("source", [*(f"{{{{ nope | {name} }}}}" for name in FILTERS), *OTHERS])
def test_an_undefined_value_gives_what_it_gives_in_transformers(source):
    given = {"message": {"role": "user"}}
    expected = outcome(lambda: PLAIN.from_string(source).render(given))
    assert outcome(lambda: Template.parse(source).render(given)) == expected


@pytest.mark.spec("CHAT-2")
def test_a_parameter_without_a_description_is_printed_as_nothing():
    source = "{% macro type_of(t) %}{{ t | upper }}{% endmacro %}{{ type_of(p.type) }}: {{ p.description | trim }}."
    assert Template.parse(source).render({"p": {"type": "integer"}}) == "INTEGER: ."
