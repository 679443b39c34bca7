"""Answers are read in processes that an expression cannot keep busy, and that are replaced."""

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from numaserve.server.answers.response_template.errors import BadTemplate
from numaserve.server.answers.response_template.template import ResponseTemplate, response_template_in
from numaserve.server.answers.response_template.types import Question, ReadAnswer
from numaserve.server.engine.types import NotReady, QueueFull

from tests.support.response_templates import CATASTROPHE, CATASTROPHIC, MARKED

HELLO = Question("[turn]", "[think]hm[/think]Hello", {}, True, True)
READ = ReadAnswer("Hello", "hm", [])
CAUGHT, UNREAD = Question("[turn]", CATASTROPHE, {}, True, True), ReadAnswer(CATASTROPHE, "", [])


@pytest.fixture
def reader() -> Iterator[ResponseTemplate]:
    made = ResponseTemplate(CATASTROPHIC, max_answers=9, cpu_seconds=0.5, seconds=60.0)
    yield made
    made.close()


def pids(reader: ResponseTemplate) -> list[int]:
    return [worker._process.pid for worker in reader._workers]


async def test_an_answer_is_read(reader: ResponseTemplate) -> None:
    assert await reader.read(HELLO) == READ
    assert (reader.has_calls, reader.has_thoughts) == (True, True)


async def test_special_tokens_are_no_part_of_texts_unless_they_are_asked_for() -> None:
    reader = ResponseTemplate(MARKED, ["<s>", "[think]", "[x]"], max_answers=1)
    question = Question("[turn]", "<s>[think]h<s>m[/think]Hello [x]", {}, True, True)
    try:
        assert await reader.read(question) == READ
        assert (await reader.read(structs.replace(question, hides=False))).content == "<s>\nHello [x]"
        assert reader.unread(question).content == "hm[/think]Hello "
    finally:
        reader.close()


async def test_an_expression_that_backtracks_ends_its_process_and_the_answer_is_text(
    reader: ResponseTemplate, caplog: pytest.LogCaptureFixture
) -> None:
    assert await reader.read(CAUGHT) == UNREAD
    assert "more than 0.5 s of processor time" in caplog.text
    assert CATASTROPHE not in caplog.text
    ended = [worker._process.returncode for worker in reader._workers if worker._process.is_stopped]
    assert ended == [-signal.SIGPROF]
    assert [await reader.read(HELLO) for _ in range(4)] == [READ] * 4


async def test_an_expression_that_backtracks_holds_up_no_other_answer() -> None:
    reader = ResponseTemplate(CATASTROPHIC, max_answers=9, cpu_seconds=1000.0, seconds=1000.0)
    caught = asyncio.create_task(reader.read(CAUGHT))
    assert [await reader.read(HELLO) for _ in range(4)] == [READ] * 4
    assert not caught.done()
    reader.close()  # in the middle of it
    assert await caught == UNREAD
    assert all(worker._process.is_stopped for worker in reader._workers)
    with pytest.raises(NotReady):
        await reader.read(HELLO)


async def test_as_many_caught_answers_as_there_are_are_read_in_turn(reader: ResponseTemplate) -> None:
    answers = await asyncio.gather(*(reader.read(each) for each in (CAUGHT, CAUGHT, CAUGHT, HELLO)))
    assert answers == [UNREAD, UNREAD, UNREAD, READ]


async def test_a_process_that_was_killed_is_replaced(reader: ResponseTemplate) -> None:
    for pid in pids(reader):
        os.kill(pid, signal.SIGKILL)
    assert await asyncio.gather(*(reader.read(HELLO) for _ in range(4))) == [READ] * 4


async def test_an_answer_without_what_has_to_be_there_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    fields: dict[str, Any] = {**MARKED["fields"], "sure": {"open": "a", "close": "b", "optional": False}}
    reader = ResponseTemplate({**MARKED, "fields": fields}, max_answers=1)
    try:
        assert await reader.read(HELLO) == ReadAnswer(HELLO.text, "", [])
        assert "a required field is missing" in caplog.text
    finally:
        reader.close()


async def test_no_more_answers_wait_than_may(reader: ResponseTemplate) -> None:
    waiting = [asyncio.create_task(reader.read(HELLO)) for _ in range(9)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="answers"):
        await reader.read(HELLO)
    assert await asyncio.gather(*waiting) == [READ] * 9


@pytest.mark.parametrize("definition", [{}, {"start_anchor": "<", "fields": {"a": {"open_pattern": "("}}}])
def test_a_template_that_is_none_is_told_at_once(definition: dict[str, Any]) -> None:
    with pytest.raises(BadTemplate):
        ResponseTemplate(definition, max_answers=1)


async def test_a_process_that_is_slow_to_start_says_nothing_of_the_template() -> None:
    reader = ResponseTemplate(MARKED, max_answers=9, seconds=0.0)
    for worker in reader._workers:
        worker._seconds = 60.0
    assert await asyncio.gather(*(reader.read(HELLO) for _ in range(4))) == [READ] * 4
    reader.close()


def test_a_model_without_a_response_template_has_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert response_template_in(tmp_path) is None
    assert response_template_in(tmp_path / "model.gguf") is None
    for text in ("{}", '{"response_template": "x"}'):
        (tmp_path / "tokenizer_config.json").write_text(text)
        assert response_template_in(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text('{"response_template": {"fields": {}}}')
    assert response_template_in(tmp_path) == {"fields": {}}
