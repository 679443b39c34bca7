"""What models write that is not quite the Hermes format."""

import pytest
from numaserve.server.answers.tools.answer import output_parser
from numaserve.server.answers.tools.formats import tool_format_of, tool_formats
from numaserve.server.answers.tools.types import Parsed, Tool, ToolCallDelta

from tests.support.model_outputs import Answer, each_way_to_cut, parse

HERMES = tool_formats()["hermes"]


def everywhere(text: str) -> Answer:
    expected = parse([text], HERMES)
    for pieces in each_way_to_cut(text):
        assert parse(pieces, HERMES) == expected
    return expected


def test_id_and_name_come_first_and_arguments_as_they_are_written() -> None:
    parser = output_parser(HERMES, None, [Tool("f")], "")
    assert parser is not None
    assert parser.push('Well.\n<tool_call>\n{"name": "f", ') == Parsed(content="Well.")
    assert parser.push('"arguments": ') == Parsed()
    assert parser.push('{"a"') == Parsed(calls=(ToolCallDelta(0, None, "f", '{"a"'),))
    assert parser.push(': "x') == Parsed(calls=(ToolCallDelta(0, arguments=': "x'),))
    assert parser.push('"}}\n</tool_call>') == Parsed(calls=(ToolCallDelta(0, arguments='"}'),))
    assert parser.finish() == Parsed()


@pytest.mark.parametrize(
    "call",
    [
        '{"arguments": {"a": 1}, "name": "f"}',
        '{"name": "f", "parameters": {"a": 1}}',
        '{"id": [1], "name": "f", "arguments": {"a": 1}, "type": "function"}',
        '{"name": "f", "arguments": "{\\"a\\": 1}"}',
        '{"arguments": "{\\"a\\": 1}", "name": "f"}',
        '{ "name" : "f" , "arguments" : { "a" : 1 } }',
    ],
)
def test_members_in_any_order_make_a_call(call: str) -> None:
    answer = everywhere(f"<tool_call>{call}</tool_call>")
    assert answer.named == [("f", {"a": 1})]
    assert answer.content == ""


@pytest.mark.parametrize(
    "call", ['{"name": "f"}', '{"name": "f", "arguments": null}', '{"name": "f", "arguments": ""}']
)
def test_no_arguments_are_an_empty_object(call: str) -> None:
    assert everywhere(f"<tool_call>\n{call}\n</tool_call>").named == [("f", {})]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>\nf(1)\n</tool_call>",
        '<tool_call>{"arguments": {"a": 1}}</tool_call> so',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 1}</tool_call>',
        "<tool_call>{'name': 'f'}</tool_call>",
        '<tool_call>{"name": "f", ',
    ],
)
def test_what_breaks_before_its_name_is_content(text: str) -> None:
    assert everywhere(text) == Answer(content=text)


def test_a_call_after_what_is_none_is_found() -> None:
    answer = everywhere('<tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>')
    assert answer.content == "<tool_call>"
    assert answer.named == [("f", {})]


def test_broken_arguments_are_what_came_up_to_the_end_of_the_call() -> None:
    answer = everywhere(
        '<tool_call>\n{"name": "f", "arguments": {"a": 1,}}\n</tool_call>\n<tool_call>{"name": "g"}</tool_call>'
    )
    assert answer.calls == [[None, "f", '{"a": 1,}}'], [None, "g", "{}"]]
    assert answer.content == ""


def test_text_after_a_call_is_content() -> None:
    assert everywhere('<tool_call>{"name": "f"}</tool_call>\nDone. \n').content == "Done. \n"
    assert everywhere('<tool_call>{"name": "f"} oops</tool_call>').content == "oops</tool_call>"


def test_the_format_is_chosen_from_the_chat_template() -> None:
    assert tool_format_of('<tool_call>\n{\\"name\\": <function-name>, \\"arguments\\": {}}\n</tool_call>') is HERMES
    assert tool_format_of("{{ messages }}") is None
