"""Messages are those that transformers makes by the same response template, and what it refuses is unreadable."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numaserve.server.response_template.definition import template_of
from numaserve.server.response_template.errors import Unreadable
from numaserve.server.response_template.reading import message_of
from transformers.utils.chat_parsing import parse_response

from tests.support.response_templates import HEADED, WRITTEN, Written

each_template = pytest.mark.parametrize("written", WRITTEN, ids=lambda each: each.name)
TEXTS = ("Hello.", " ", "é", "42")
UNREADABLE = "unreadable"


def theirs(template: dict[str, Any], prompt: str, answer: str) -> object:
    try:
        return parse_response(answer, template, prefix=prompt)
    except ValueError:
        return UNREADABLE


def ours(template: dict[str, Any], prompt: str, answer: str) -> object:
    try:
        return message_of(template_of(template), prompt, answer)
    except Unreadable:
        return UNREADABLE


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
