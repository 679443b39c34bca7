"""What is true of each format of thoughts: they are told apart from the answer, wherever the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numaserve.server.answers.reasoning.format import ReasoningFormat
from numaserve.server.answers.reasoning.formats import reasoning_formats
from numaserve.server.answers.tools.format import Call
from numaserve.server.answers.tools.formats import tool_formats
from numaserve.server.answers.tools.types import Tool

from tests.support.model_outputs import Answer, cut, each_way_to_cut, parse

FORMATS = [each for each in reasoning_formats().values() if not each.channels]
each_format = pytest.mark.parametrize("thoughts", FORMATS, ids=lambda each: each.name)
HERMES = tool_formats()["hermes"]
WORDS = st.sampled_from(["So", " 1 < 2", "\n", "  ", "é", "<", "[", "</", "th", "\n\n"])


@each_format
@given(thought=st.lists(WORDS, max_size=8), answer=st.lists(WORDS, max_size=8), inside=st.booleans(), data=st.data())
def test_thought_and_answer_are_told_apart(
    thoughts: ReasoningFormat, thought: list[str], answer: list[str], inside: bool, data: st.DataObject
) -> None:
    start = "" if inside else thoughts.start
    text = f"{start}\n{''.join(thought)}\n{thoughts.end}\n\n{''.join(answer)}"
    prompt = f"Hello{thoughts.start}\n" if inside else "Hello"
    expected = Answer(content="".join(answer).lstrip("\n"), reasoning="".join(thought).strip(" \n"))
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=5))
    assert parse(cut(text, places), thoughts=thoughts, prompt=prompt) == expected


@each_format
def test_a_thought_that_does_not_end_is_no_answer(thoughts: ReasoningFormat) -> None:
    for pieces in each_way_to_cut(f"{thoughts.start}Let me see"):
        assert parse(pieces, thoughts=thoughts) == Answer(reasoning="Let me see")


@each_format
def test_a_prompt_that_closes_the_thought_begins_the_answer(thoughts: ReasoningFormat) -> None:
    prompt = f"Hello{thoughts.start}\n\n{thoughts.end}\n\n"
    assert parse(["Hi"], thoughts=thoughts, prompt=prompt) == Answer(content="Hi")


@each_format
def test_marks_of_the_answer_are_no_part_of_it(thoughts: ReasoningFormat) -> None:
    text = f"{thoughts.start}So.{thoughts.end}\n{thoughts.answer_start}\nYes.\n"
    for pieces in each_way_to_cut(f"{text}{thoughts.answer_end}\n" if thoughts.answer_end else text.strip()):
        assert parse(pieces, thoughts=thoughts) == Answer(content="Yes.", reasoning="So.")


@pytest.mark.parametrize("thoughts", [each for each in FORMATS if each.anywhere], ids=lambda each: each.name)
def test_thoughts_between_parts_of_the_answer_are_lines_of_one(thoughts: ReasoningFormat) -> None:
    text = f"{thoughts.start}One.\n{thoughts.end}Yes, {thoughts.start}two.{thoughts.end}no."
    for pieces in each_way_to_cut(text):
        assert parse(pieces, thoughts=thoughts) == Answer(content="Yes, no.", reasoning="One.\ntwo.")


def test_an_answer_of_deepseek_r1_begins_inside_of_a_thought() -> None:
    thoughts = reasoning_formats()["deepseek_r1"]
    assert parse(["So.\n</think>\n\nYes."], thoughts=thoughts) == Answer(content="Yes.", reasoning="So.")
    assert parse(["Yes."], thoughts=thoughts, prompt="<think>\n\n</think>\n\n") == Answer(content="Yes.")


def test_a_call_ends_a_thought_of_kimi() -> None:
    calls = tool_formats()["kimi_k2"]
    text = f"<think>Let me look.\n{calls.render([Call(name='f', arguments={'a': 1})])}"
    for pieces in each_way_to_cut(text):
        answer = parse(pieces, calls, reasoning_formats()["kimi_k2"])
        assert (answer.content, answer.reasoning) == ("", "Let me look.")
        assert answer.calls == [["functions.f:0", "f", '{"a": 1}']]


def test_calls_follow_on_the_thought() -> None:
    thoughts = reasoning_formats()["think"]
    call = HERMES.render([Call(name="f", arguments={"a": 1})])
    text = f"<think>\nShall I call {call}?\n</think>\n\nYes.\n{call}"
    for pieces in each_way_to_cut(text):
        answer = parse(pieces, HERMES, thoughts)
        assert answer.reasoning == f"Shall I call {call}?"
        assert answer.content == "Yes."
        assert answer.named == [("f", {"a": 1})]


def test_markers_in_the_answer_are_its_text() -> None:
    answer = parse(["I write <think> and </think> so."], HERMES, reasoning_formats()["think"], [Tool("f")])
    assert answer == Answer(content="I write <think> and </think> so.")
