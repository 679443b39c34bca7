"""Which format belongs to a chat template; real templates are tried by `make test-templates`."""

from pkgutil import iter_modules

import pytest
from numaserve.server.answers.reasoning import formats as reasoning_modules
from numaserve.server.answers.reasoning.formats import reasoning_format_of, reasoning_formats
from numaserve.server.answers.tools import formats as tool_modules
from numaserve.server.answers.tools.formats import tool_format_of, tool_formats


def test_names_are_those_of_the_files() -> None:
    folders = (tool_modules.__path__, tool_formats()), (reasoning_modules.__path__, reasoning_formats())
    for path, formats in folders:
        assert list(formats) == sorted(module.name for module in iter_modules(path))
    assert {"hermes", "harmony", "pythonic"} <= tool_formats().keys()
    assert {"think", "deepseek_r1", "gpt_oss"} <= reasoning_formats().keys()


@pytest.mark.parametrize("name", list(tool_formats()))
def test_a_format_of_calls_is_chosen_by_what_its_templates_have(name: str) -> None:
    template = "{{ messages }}" + " ".join(tool_formats()[name].in_template)
    assert tool_format_of(template) is tool_formats()[name]


@pytest.mark.parametrize("name", list(reasoning_formats()))
def test_a_format_of_thoughts_is_chosen_by_what_its_templates_have(name: str) -> None:
    template = "{{ messages }}" + " ".join(reasoning_formats()[name].in_template)
    if name == "deepseek_r1":
        template += "</think>"
    assert reasoning_format_of(template) is reasoning_formats()[name]


def test_no_format_is_chosen_for_a_template_without_calls_or_thoughts() -> None:
    template = "{% for message in messages %}<|im_start|>{{ message.role }}{{ message.content }}{% endfor %}"
    assert tool_format_of(template) is None
    assert reasoning_format_of(template) is None


@pytest.mark.parametrize(("end", "name"), [("'\\n</parameter>\\n'", "qwen3_coder"), ("'</parameter>\\n'", "mimo")])
def test_the_line_breaks_around_a_value_tell_two_formats_apart(end: str, name: str) -> None:
    template = f"{{{{- '<tool_call>\\n<function=' + call.name + '>\\n<parameter=' + key + '>' + value + {end} }}}}"
    assert tool_format_of(template) is tool_formats()[name]
