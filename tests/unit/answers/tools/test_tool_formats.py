"""What is true of each format: what it writes it reads, wherever it is cut, and nothing that it reads breaks it."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numaserve.server.answers.tools.format import Call, ToolFormat
from numaserve.server.answers.tools.formats import tool_formats
from numaserve.server.answers.tools.types import Tool

from tests.support.model_outputs import ARGUMENTS, Answer, cut, each_way_to_cut, parse, schema_of

FORMATS = list(tool_formats().values())
each_format = pytest.mark.parametrize("tool_format", FORMATS, ids=lambda each: each.name)
CALLS = st.lists(ARGUMENTS, min_size=1, max_size=3)
TEXT = st.sampled_from(["", "Let me see.", "a < b", "{no call", 'He said "<tool".', "[1] shows"])


def calls_of(arguments: list[dict[str, Any]]) -> tuple[list[Call], list[Tool]]:
    calls = [Call(name=f"tool_{number}", arguments=each) for number, each in enumerate(arguments)]
    return calls, [Tool(call.name, parameters=schema_of(call.arguments)) for call in calls]


def strings(value: object) -> list[str]:
    """All strings in a value of JSON."""
    if isinstance(value, dict):
        return [text for key, each in value.items() for text in (key, *strings(each))]
    if isinstance(value, list):
        return [text for each in value for text in strings(each)]
    return [value] if isinstance(value, str) else []


def marks(tool_format: ToolFormat) -> re.Pattern[str]:
    """What stands for itself in a format: its tokens and tags."""
    return re.compile("|".join([*map(re.escape, tool_format.tokens), "</?(function|parameter|invoke)[^>]*>"]))


def writable(tool_format: ToolFormat, arguments: list[dict[str, Any]]) -> bool:
    """Whether the format can write them: some have no way to write their own marks in a value."""
    return not any(marks(tool_format).search(text) for text in strings(arguments))


# All formats in one test: making arguments takes most of the time.
@settings(max_examples=60)
@given(arguments=CALLS, text=TEXT)
def test_calls_that_are_written_are_read(arguments: list[dict[str, Any]], text: str) -> None:
    calls, tools = calls_of(arguments)
    for tool_format in FORMATS:
        if writable(tool_format, arguments):
            said = "" if tool_format.bare else text
            answer = parse([said + tool_format.render(calls)], tool_format, tools=tools)
            assert (tool_format.name, answer.content) == (tool_format.name, said)
            assert answer.named == [(call.name, call.arguments) for call in calls]


@settings(max_examples=30)
@given(arguments=CALLS, text=TEXT, drop=st.integers(0, 40), places=st.lists(st.integers(0, 300), max_size=6))
def test_the_answer_is_the_same_wherever_it_is_cut(
    arguments: list[dict[str, Any]], text: str, drop: int, places: list[int]
) -> None:
    calls, tools = calls_of(arguments)
    for tool_format in FORMATS:
        whole = text + tool_format.render(calls) + text
        whole = whole[: max(0, len(whole) - drop)]
        expected = parse([whole], tool_format, tools=tools)
        assert (tool_format.name, parse(cut(whole, places), tool_format, tools=tools)) == (tool_format.name, expected)
        assert parse(list(whole), tool_format, tools=tools) == expected


@each_format
def test_a_call_is_the_same_at_each_cut(tool_format: ToolFormat) -> None:
    calls, tools = calls_of([{"city": "Köln </f>", "days": [1, 2.5, None, True], "more": {"a": "x\ny"}}, {}])
    text = tool_format.render(calls)
    expected = parse([text], tool_format, tools=tools)
    assert len(expected.calls) == 2
    for pieces in each_way_to_cut(text):
        assert parse(pieces, tool_format, tools=tools) == expected


@each_format
@settings(max_examples=30)
@given(data=st.data())
def test_whatever_a_model_writes_is_read_the_same_in_pieces_and_whole(
    tool_format: ToolFormat, data: st.DataObject
) -> None:
    calls, tools = calls_of([{"a": "b", "c": [1]}, {"d": {}}])
    rendered = tool_format.render(calls)
    fragments = st.sampled_from(
        [*tool_format.tokens, *tool_format.triggers, *rendered, rendered, "\n", '"', "\\", "{", "}"]
    )
    text = "".join(data.draw(st.lists(fragments, max_size=20)))
    expected = parse([text], tool_format, tools=tools)
    assert parse(list(text), tool_format, tools=tools) == expected
    assert parse(cut(text, data.draw(st.lists(st.integers(0, 200), max_size=4))), tool_format, tools=tools) == expected


@each_format
@settings(max_examples=20)
@given(words=st.lists(st.sampled_from(["Hello", " wörld", "!", "\n", "  ", "x<y", " 😀", "{", "["]), max_size=12))
def test_text_without_a_call_is_the_answer_to_the_last_character(tool_format: ToolFormat, words: list[str]) -> None:
    answer = parse(words, tool_format)
    assert answer == Answer(content="".join(words))


@each_format
def test_a_call_cut_short_keeps_what_came(tool_format: ToolFormat) -> None:
    calls, tools = calls_of([{"city": "Cologne", "country": "Germany"}])
    text = tool_format.render(calls)
    seen = set()
    whole = [match.span() for match in marks(tool_format).finditer(text)]
    for end in range(len(text)):
        if any(first < end < last for first, last in whole):
            continue  # a mark is not cut short
        answer = parse([text[:end]], tool_format, tools=tools)
        if answer.calls:
            assert answer.content == ""
            # A line break may begin the end of a value, or belong to it.
            seen.add(str(answer.calls[0][2]).removesuffix("\\n"))
        else:
            assert answer.content == text[:end]
    assert seen
    assert all(json.dumps(calls[0].arguments).replace(" ", "").startswith(each.replace(" ", "")) for each in seen)
