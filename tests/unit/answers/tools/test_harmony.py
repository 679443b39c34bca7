"""Messages in the channels of gpt-oss."""

import pytest
from numaserve.server.answers.reasoning.formats import reasoning_formats
from numaserve.server.answers.tools.answer import output_parser
from numaserve.server.answers.tools.formats import tool_formats
from numaserve.server.answers.tools.types import OutputParser, Tool

from tests.support.model_outputs import Answer, each_way_to_cut, joined

HARMONY = tool_formats()["harmony"]
GPT_OSS = reasoning_formats()["gpt_oss"]
PROMPT = "<|start|>user<|message|>Hi<|end|><|start|>assistant"


def parser(*tools: str) -> OutputParser:
    made = output_parser(HARMONY, GPT_OSS, [Tool(name) for name in tools], PROMPT)
    assert made is not None
    return made


def everywhere(text: str, *tools: str) -> Answer:
    expected = joined(parser(*tools), [text])
    for pieces in each_way_to_cut(text):
        assert joined(parser(*tools), pieces) == expected
    return expected


def test_analysis_is_the_thought_and_final_the_answer() -> None:
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.\n<|return|>"
    assert everywhere(text) == Answer(content="Yes.\n", reasoning="Hm.")
    assert everywhere(text.removesuffix("<|return|>")) == Answer(content="Yes.\n", reasoning="Hm.")


@pytest.mark.parametrize(
    "head",
    [
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json",
        "<|start|>assistant to=functions.f<|channel|>commentary json",
        "<|channel|>commentary to=functions.f",
        "<|start|>assistant<|channel|>analysis to=f code",
    ],
)
@pytest.mark.parametrize("end", ["<|call|>", "", "<|end|>"])
def test_a_message_to_a_function_is_a_call(head: str, end: str) -> None:
    answer = everywhere(f'<|channel|>analysis<|message|>Hm.<|end|>{head}<|message|>{{"a": 1}}{end}', "f")
    assert answer == Answer(reasoning="Hm.", calls=[[None, "f", '{"a": 1}']])


def test_an_answer_may_begin_in_the_head_of_a_call() -> None:
    answer = everywhere(' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>', "f")
    assert answer == Answer(calls=[[None, "f", '{"a": 1}']])


def test_commentary_to_nobody_is_content() -> None:
    call = "<|start|>assistant to=functions.f<|channel|>commentary<|message|>{}"
    text = f"<|channel|>commentary<|message|>I look. <|end|>{call}"
    assert everywhere(text, "f") == Answer(content="I look.", calls=[[None, "f", "{}"]])


def test_several_thoughts_are_lines_of_one() -> None:
    text = "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
    assert everywhere(text) == Answer(reasoning="One.\nTwo.")


def test_thoughts_are_read_without_a_format_of_calls_and_calls_without_tools() -> None:
    made = output_parser(None, GPT_OSS, (), PROMPT)
    assert made is not None
    assert joined(made, ["<|channel|>analysis<|message|>Hm.<|end|>"]) == Answer(reasoning="Hm.")
    assert everywhere("<|channel|>commentary to=functions.f<|message|>{}<|call|>").calls == [[None, "f", "{}"]]


@pytest.mark.parametrize("text", ["Hello", "<|channel|>final", "<|start|>assistant<|end|>", "to=f", "<|message|>x"])
def test_what_is_no_message_is_content(text: str) -> None:
    assert everywhere(text, "f") == Answer(content=text)
