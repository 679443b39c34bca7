"""What an answer is by a response template: its text, its thought and its calls, and what becomes of the rest."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numaserve.server.answers.response_template.answer import answer_of
from numaserve.server.answers.response_template.definition import template_of
from numaserve.server.answers.response_template.errors import Unreadable
from numaserve.server.answers.response_template.types import Question, ReadAnswer, ReadCall

from tests.support.model_outputs import ARGUMENTS
from tests.support.response_templates import BARE, HEADED, LISTED, MARKED, WRITTEN, Written

HEADED_CALL = {"name": "f", "arguments": "{content}"}
WORDS = st.text("ab cé{}<>\"'\\\n", max_size=20)


def read(
    template: dict[str, Any],
    text: str,
    *,
    prompt: str = "",
    tools: dict[str, dict[str, Any] | None] | None = None,
    calls: bool = True,
    thoughts: bool = True,
) -> ReadAnswer:
    return answer_of(template_of(template), Question(prompt, text, tools or {}, calls, thoughts))


def texts(value: object, *, keys: bool) -> list[str]:
    """All keys in a value of JSON, or all its other texts."""
    if isinstance(value, dict):
        return [*(value if keys else ()), *(text for each in value.values() for text in texts(each, keys=keys))]
    if isinstance(value, list):
        return [text for each in value for text in texts(each, keys=keys)]
    return [value] if isinstance(value, str) and not keys else []


def writable(written: Written, text: str, arguments: list[dict[str, Any]]) -> bool:
    """Whether the format can write them: none has a way to write its own marks."""
    names, values = texts(arguments, keys=True), texts(arguments, keys=False)
    if written.template is BARE and ("<c>" in text or not all(name.isidentifier() for name in names)):
        return False
    return not any(mark in text for text in names + values for mark in (">", "«", "»", "\n", "END", "\x01", "\x02"))


@given(arguments=st.lists(ARGUMENTS, min_size=1, max_size=3), thought=WORDS, text=WORDS)
def test_calls_that_are_written_are_read(arguments: list[dict[str, Any]], thought: str, text: str) -> None:
    calls = [(f"tool_{number}", each) for number, each in enumerate(arguments)]
    for written in WRITTEN:
        if not writable(written, text, arguments):
            continue
        found = read(written.template, written.write(thought, text, calls), prompt=written.prompt)
        assert [(call.name, json.loads(call.arguments)) for call in found.calls] == calls, written.name
        if written.template is not HEADED:
            assert found.content == text.strip()
        if written.template is not LISTED:
            assert found.reasoning == thought.strip()


def test_ids_that_the_model_writes_are_kept() -> None:
    found = read(MARKED, '[call]{"id": "c7", "name": "f", "arguments": {"a": 1}}[/call]')
    assert found == ReadAnswer("", "", [ReadCall("f", '{"a": 1}', "c7")])


@pytest.mark.parametrize(
    "broken",
    [
        '\n[call]{"id": "1", "name": "f", "argu',  # cut
        "[call]no JSON[/call]",
        '[call]{"id": "1", "arguments": {}}[/call]',  # no name
        '[call]{"name": "f", "arguments": {}}[/call]',  # not what the transform asks for
        '[call]{"id": "1", "name": "f", "arguments": {"a": NaN}}[/call]',
        "[call]" + "[" * 100_000,
    ],
)
def test_a_call_that_cannot_be_read_is_text_where_it_stands(broken: str) -> None:
    good = '[call]{"id": "1", "name": "f", "arguments": {}}[/call]'
    assert read(MARKED, f"Now:{good}{broken}") == ReadAnswer(f"Now:{broken}", "", [ReadCall("f", "{}", "1")])
    assert read(MARKED, f"[think]hm[/think]{broken}").reasoning == "hm"


def test_a_tag_without_a_key_makes_its_call_text() -> None:
    tags = {"content": "xml-inline", "content_args": {"tag_pattern": "<(?P<key>k)?>"}, "transform": HEADED_CALL}
    template = {"start_anchor": "x", "fields": {"tool_calls": {"open": "(", "close": ")", **tags}}}
    assert read(template, "(<k>)").calls == [ReadCall("f", '{"k": ""}')]
    assert read(template, "(<k><>)") == ReadAnswer("(<k><>)", "", [])


def test_no_text_before_or_behind_a_call_is_lost() -> None:
    call = '[call]{"id": "1", "name": "f", "arguments": {}}[/call]'
    assert read(MARKED, f"Now:{call}\n").content == "Now:"
    assert read(MARKED, f"Now:{call}\nDone.[think]a[/think][think]b[/think]") == ReadAnswer(
        "Now:\nDone.", "a\nb", [ReadCall("f", "{}", "1")]
    )
    assert read(HEADED, "<|to|>user<|is|>a<|over|><|to|>user<|is|>b").content == "a\nb"


def test_what_nobody_wants_told_apart_is_text_where_it_stands() -> None:
    call = '[call]{"id": "1", "name": "f", "arguments": {}}[/call]'
    text = f"[think]hm[/think]Hello{call}"
    assert read(MARKED, text, calls=False) == ReadAnswer(f"Hello{call}", "hm", [])
    assert read(MARKED, text, calls=False, thoughts=False).content == text


def test_a_thought_that_the_prompt_begins_is_the_answers_from_there_on() -> None:
    assert read(MARKED, "m[/think]Hello", prompt="[turn][think]h") == ReadAnswer("Hello", "m", [])
    assert read(MARKED, " there", prompt="[turn][think]x[/think]Hello") == ReadAnswer("there", "", [])
    assert read(MARKED, "", prompt="[turn]Hello") == ReadAnswer("", "", [])


def test_a_call_that_the_prompt_begins_is_a_whole_call() -> None:
    found = read(MARKED, '"arguments": {}}', prompt='[turn][call]{"id": "1", "name": "f", ')
    assert found.calls == [ReadCall("f", "{}", "1")]


def test_turns_before_the_last_one_do_not_count() -> None:
    assert read(MARKED, "Hi", prompt="[turn][think]old[/turn][turn]") == ReadAnswer("Hi", "", [])


def test_texts_among_the_arguments_are_what_the_schema_says() -> None:
    parameters = {"properties": {"n": {"type": "integer"}, "s": {"type": "string"}, "b": {"type": ["boolean", "null"]}}}
    text = "<c>f{n:«7»,s:«7»,b:«true»,other:«7»}</c>"
    (call,) = read(BARE, text, tools={"f": parameters}).calls
    assert json.loads(call.arguments) == {"n": 7, "s": "7", "b": True, "other": "7"}
    (call,) = read(BARE, text, tools={"g": parameters}).calls
    assert json.loads(call.arguments) == {"n": "7", "s": "7", "b": "true", "other": "7"}


def test_a_field_that_has_to_be_there_and_is_not_leaves_nothing_readable() -> None:
    with pytest.raises(Unreadable):
        read(LISTED, "SAYHelloEND")
    assert read(LISTED, "SURE 1\nSAYHelloEND").content == "Hello"
    assert read(LISTED, "SAYHelloEND", prompt="\nmodel:SURE 1\n").content == "Hello"


def test_one_answer_leaves_nothing_for_the_next() -> None:
    template = template_of({**MARKED, "defaults": {"thinking": None, "tool_calls": []}})
    for _ in range(2):
        question = Question("", '[call]{"id": "1", "name": "f", "arguments": {}}[/call]', {}, True, True)
        assert len(answer_of(template, question).calls) == 1
    joined = template_of(
        {
            "start_anchor": "x",
            "defaults": {"content": []},
            "fields": {"content": {"open": "<", "close": ">", "repeats": True}},
        }
    )
    for _ in range(2):
        assert answer_of(joined, Question("", "<a><b>", {}, True, True)).content == "a\nb"
