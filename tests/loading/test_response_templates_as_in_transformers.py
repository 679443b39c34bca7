"""Messages are those that transformers makes by the same response template, and what it refuses is unreadable."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numaserve.server.answers.response_template.definition import Field, template_of
from numaserve.server.answers.response_template.errors import Unreadable
from numaserve.server.answers.response_template.reading import check_complete, regions, turn_of
from transformers.utils.chat_parsing import parse_response

from tests.support.response_templates import HEADED, WRITTEN, Written

each_template = pytest.mark.parametrize("written", WRITTEN, ids=lambda each: each.name)
TEXTS = ("Hello.", " ", "é", "42")
UNREADABLE = "unreadable"
EMPTY: tuple[object, ...] = (None, "", [], {})


def theirs(template: dict[str, Any], prompt: str, answer: str) -> object:
    try:
        return parse_response(answer, template, prefix=prompt)
    except ValueError:
        return UNREADABLE


def ours(template: dict[str, Any], prompt: str, answer: str) -> object:
    try:
        return message_of(template, prompt, answer)
    except Unreadable:
        return UNREADABLE


def message_of(written: dict[str, Any], prompt: str, answer: str) -> dict[str, Any]:
    """The message of the regions that are found. Raises `Unreadable`."""
    template = template_of(written)
    text = turn_of(template, prompt) + answer
    message = deepcopy(dict(template.defaults))
    for region in regions(template, text):
        value = region.field.value(text[region.begin : region.stop], region.captures)
        add(message, region.field, bool(written["fields"][region.field.name].get("repeats")), value)
    check_complete(template, message)
    return {name: value for name, value in message.items() if name in template.defaults or value not in EMPTY}


def add(message: dict[str, Any], field: Field, repeats: bool, value: Any) -> None:
    if field.join is not None:
        if not isinstance(value, str):
            raise Unreadable
        message[field.name] = value if message.get(field.name) is None else message[field.name] + field.join + value
    elif repeats:
        message.setdefault(field.name, []).append(value)
    else:
        message[field.name] = value


@each_template
def test_a_whole_message_is_the_same(written: Written) -> None:
    answer = written.write("Hm.", "Hello.", [("f", {"a": 1, "b": ["x", {"c": None}]}), ("g", {})])
    message = theirs(written.template, written.prompt, answer)
    assert message != UNREADABLE
    assert ours(written.template, written.prompt, answer) == message


@each_template
def test_an_answer_of_any_parts_is_the_same(written: Written) -> None:
    parts = st.lists(st.sampled_from([*written.parts, *TEXTS]), max_size=9).map("".join)
    seen = set()

    @given(prompt=parts, answer=parts)
    def compare(prompt: str, answer: str) -> None:
        message = theirs(written.template, prompt, answer)
        assert ours(written.template, prompt, answer) == message
        seen.add(message == UNREADABLE)

    compare()
    assert seen == ({False} if written.template is HEADED else {True, False})  # which takes arguments of any form


@each_template
def test_a_message_that_is_cut_anywhere_is_the_same(written: Written) -> None:
    answer = written.write("Hm.", "Hello.", [("f", {"a": "x"})])
    for end in range(len(answer)):
        assert ours(written.template, written.prompt, answer[:end]) == theirs(
            written.template, written.prompt, answer[:end]
        )
