"""A template's process that does not answer, whatever it was doing."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from numaserve.server.confined.work import ANSWER_HEAD
from numaserve.server.tokenizer.chat_template import ChatTemplate
from numaserve.server.tokenizer.types import ChatTemplateError, ChatTemplateUnavailable

SOURCE = (
    "{% if endless %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
    "{{ text | length }}"
)


@pytest.fixture
def template() -> Iterator[ChatTemplate]:
    made = ChatTemplate(SOURCE, cpu_seconds=100.0, seconds=60.0)
    assert made.render({"text": "x"}) == "1"
    yield made
    made.close()


def stop(template: ChatTemplate) -> None:
    os.kill(template._worker._process.pid, signal.SIGSTOP)


def works_again(template: ChatTemplate) -> bool:
    template._worker._seconds = 60.0  # a new process has to start, on a machine that may be busy
    return template.render({"text": "xy"}) == "2"


def processor_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])


def test_a_process_that_was_stopped_between_conversations_is_replaced(template: ChatTemplate) -> None:
    process = template._worker._process
    stop(template)
    template._worker._seconds = 0.2
    with pytest.raises(ChatTemplateUnavailable, match=r"within 0\.2 s"):
        template.render({"text": "x"})
    assert process.returncode == -signal.SIGKILL
    assert works_again(template)


@pytest.mark.parametrize("stopped", [True, False])
def test_a_process_that_does_not_come_to_an_end_is_replaced(template: ChatTemplate, *, stopped: bool) -> None:
    before = processor_ticks(template._worker._process.pid)
    template._worker._seconds = 1.0
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(template.render, {"endless": True})
        while stopped and not answer.done() and processor_ticks(template._worker._process.pid) < before + 3:
            time.sleep(0.01)
        if stopped and not answer.done():
            stop(template)
        with pytest.raises(ChatTemplateUnavailable):
            answer.result()
    assert works_again(template)


def test_a_process_that_stops_reading_is_replaced(template: ChatTemplate) -> None:
    stop(template)
    template._worker._seconds = 0.2
    with pytest.raises(ChatTemplateUnavailable):
        template.render({"text": "x" * 8_000_000})  # a pipe holds 65536 of them
    assert works_again(template)


def test_a_long_conversation_goes_through_the_pipes(template: ChatTemplate) -> None:
    assert template.render({"text": "x" * 8_000_000}) == "8000000"


def test_closing_ends_a_rendering(template: ChatTemplate) -> None:
    stop(template)
    writing = threading.Event()
    exchange = template._worker._exchange

    def tell(*arguments: object) -> object:
        writing.set()
        return exchange(*arguments)  # type: ignore[arg-type]

    template._worker._exchange = tell  # type: ignore[method-assign, assignment]
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(template.render, {"text": "x"})
        assert writing.wait(30)
        template.close()
        with pytest.raises(ChatTemplateUnavailable, match="shutting down"):
            stuck.result()
    with pytest.raises(ChatTemplateUnavailable, match="shutting down"):
        template.render({})


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"x",
        ANSWER_HEAD.pack(True, 9) + b"short",
        ANSWER_HEAD.pack(True, 10**15) + b"x" * 10**5,
        ANSWER_HEAD.pack(True, 1) + b"\xff",
    ],
)
def test_an_answer_out_of_form_ends_the_process(
    template: ChatTemplate, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    code = f"import sys; sys.stdin.buffer.readline(); sys.stdout.buffer.write({answer!r}); sys.stdout.flush()"
    monkeypatch.setattr("numaserve.server.confined.worker.module_command", lambda _: (sys.executable, "-c", code))
    template._worker._process.kill()
    with pytest.raises(ChatTemplateUnavailable, match="ended twice without a result"):
        template.render({"text": "x"})
    monkeypatch.undo()
    assert works_again(template)


def test_a_process_that_is_killed_twice_is_no_fault_of_the_conversation(
    template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_by(monkeypatch, template, signal.SIGKILL)
    with pytest.raises(ChatTemplateUnavailable, match="Retry later"):
        template.render({"text": "x"})
    monkeypatch.undo()
    assert works_again(template)


def test_a_process_that_crashes_twice_has_crashed_of_the_conversation(
    template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_by(monkeypatch, template, signal.SIGSYS)
    with pytest.raises(ChatTemplateError, match="crashed twice"):
        template.render({"text": "x"})
    monkeypatch.undo()
    assert works_again(template)


def die_by(monkeypatch: pytest.MonkeyPatch, template: ChatTemplate, number: signal.Signals) -> None:
    """Have the process, and each that follows it, die by this signal when it is asked."""
    code = f"import os, sys; sys.stdin.buffer.readline(); os.kill(os.getpid(), {number})"
    monkeypatch.setattr("numaserve.server.confined.worker.module_command", lambda _: (sys.executable, "-c", code))
    template._worker._process.kill()


def test_a_kernel_without_filters_is_named(template: ChatTemplate, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; sys.stdin.buffer.readline(); sys.exit(3)"
    monkeypatch.setattr("numaserve.server.confined.worker.module_command", lambda _: (sys.executable, "-c", code))
    template._worker._process.kill()
    with pytest.raises(ChatTemplateError, match="seccomp"):
        template.render({"text": "x"})
