"""Whatever a template may use of jinja2 works in the confined process, where nothing can be imported any more."""

from collections.abc import Iterator

import pytest
from jinja2.defaults import DEFAULT_FILTERS, DEFAULT_NAMESPACE, DEFAULT_TESTS
from numaserve.server.tokenizer.chat_template import ChatTemplate

USERS = "[{'name': 'b', 'age': 2}, {'name': 'a', 'age': 1}]"
FILTERS = {
    "abs": "-1 | abs",
    "attr": "'x' | attr('upper')",
    "batch": "[1, 2, 3] | batch(2) | list",
    "capitalize": "'abc' | capitalize",
    "center": "'abc' | center(9)",
    "count": "'abc' | count",
    "d": "missing | d('x')",
    "default": "missing | default('x')",
    "dictsort": "{'b': 1, 'a': 2} | dictsort",
    "e": "'<' | e",
    "escape": "'<' | escape",
    "filesizeformat": "123456 | filesizeformat(true)",
    "first": "'abc' | first",
    "float": "'1.5' | float",
    "forceescape": "'<' | forceescape",
    "format": "'%s %d' | format('x', 1)",
    "groupby": f"{USERS} | groupby('age') | list",
    "indent": "'a\\nb' | indent(2)",
    "int": "'12' | int",
    "items": "{'a': 1} | items | list",
    "join": "[1, 2] | join(',')",
    "last": "'abc' | last",
    "length": "'abc' | length",
    "list": "'abc' | list",
    "lower": "'ABC' | lower",
    "map": f"{USERS} | map(attribute='name') | list",
    "max": "[1, 2] | max",
    "min": "[1, 2] | min",
    "pprint": f"{USERS} | pprint",
    "random": "[1, 1] | random",
    "reject": "[1, 2] | reject('odd') | list",
    "rejectattr": f"{USERS} | rejectattr('age', 'odd') | list",
    "replace": "'abc' | replace('b', 'x')",
    "reverse": "'abc' | reverse",
    "round": "1.26 | round(1)",
    "safe": "'<' | safe",
    "select": "[1, 2] | select('odd') | list",
    "selectattr": f"{USERS} | selectattr('age', 'odd') | list",
    "slice": "[1, 2, 3] | slice(2) | list",
    "sort": f"{USERS} | sort(attribute='name')",
    "string": "1 | string",
    "striptags": "'<b>a &amp; b</b>' | striptags",
    "sum": "[1, 2] | sum",
    "title": "'a b' | title",
    "tojson": "{'a': [1, 'é']} | tojson(indent=2)",
    "trim": "' a ' | trim",
    "truncate": "'one two three four' | truncate(9, leeway=0)",
    "unique": "'aab' | unique | list",
    "upper": "'abc' | upper",
    "urlencode": "{'a': 'b c'} | urlencode",
    "urlize": "'see http://a.b/c' | urlize",
    "wordcount": "'a b' | wordcount",
    "wordwrap": "'one two three' | wordwrap(5)",
    "xmlattr": "{'a': 'b'} | xmlattr",
}
GLOBALS = {
    "cycler": "cycler(1, 2).next()",
    "dict": "dict(a=1)",
    "joiner": "joiner()()",
    "lipsum": "lipsum(n=1, html=false) | length > 9",
    "namespace": "namespace(a=1).a",
    "range": "range(3) | list",
}
OTHERS = [
    r"'\N{BULLET}'",
    "7 ** 5000",
    "(7 ** 5000) | string | int",
    "'é'.encode('latin-1')",
    "strftime_now('%c %Z %x')",
    "'%-10s|%05.1f' % ('x', 1.25)",
    "'{:>5}'.format(1)",
    "'x'.encode('utf-16')",
    "caller is defined",
]
COMPARISONS = ("eq", "equalto", "ge", "gt", "greaterthan", "le", "lt", "lessthan", "ne", "sameas")
ARGUMENTS = {"divisibleby": "(2)", "in": "([1])", **dict.fromkeys(COMPARISONS, "(1)")}


@pytest.fixture(scope="module")
def template() -> Iterator[ChatTemplate]:
    # One process for all: `from_string` inside a template does not exist, so each expression is a branch of its own.
    branches = "".join(
        f"{{% if case == {number} %}}{{{{ {expression} }}}}{{% endif %}}" for number, expression in enumerate(CASES)
    )
    made = ChatTemplate(branches, cpu_seconds=20.0)
    yield made
    made.close()


def _test_expression(name: str) -> str:
    value = "'x'" if name in ("lower", "upper", "filter", "test") else "1"
    if name.isidentifier():
        return f"{value} is {name}{ARGUMENTS.get(name, '')}"
    return f"[1] | select('{name}', 1) | list"


CASES = [*FILTERS.values(), *GLOBALS.values(), *(_test_expression(name) for name in DEFAULT_TESTS), *OTHERS]


def test_every_builtin_is_here() -> None:
    assert FILTERS.keys() == DEFAULT_FILTERS.keys()
    assert GLOBALS.keys() == DEFAULT_NAMESPACE.keys()


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: CASES[case])
def test_a_builtin_works(template: ChatTemplate, case: int) -> None:
    template.render({"case": case, "caller": None})
