"""`numaserve chat URL`, over a server whose answers are given."""

import io
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from numaserve.server.cli.main import main

from tests.support.stand_in import StandIn

PATIENCE_S = 60.0


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> object:
    def talk(url: str, *lines: str, options: tuple[str, ...] = ()) -> tuple[object, str, str]:
        """The exit status, and what was written."""
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        with pytest.raises(SystemExit) as caught:
            main(("chat", url, *options))
        return caught.value.code, *capsys.readouterr()

    return talk


def test_answers_are_written_with_their_figures(server: StandIn, talk) -> None:
    server.engine.reply = "It is so."
    status, out, _ = talk(server.url, "Is it?", "Really?", options=("--system", "Be brief.", "--temperature", "0.5"))
    assert status == 0
    assert out.count("It is so.\n") == 2
    assert "10 tokens, " in out
    assert out.count(", stop\n") == 2
    roles = [message["role"] for message in server.template.messages]
    assert roles == ["system", "user", "assistant", "user"]
    assert {request.sampling.temperature for request in server.engine.admitted} == {0.5}


def test_without_options_answers_are_drawn_as_the_server_does_by_default(server: StandIn, talk) -> None:
    talk(server.url, "Is it?")
    (request,) = server.engine.admitted
    assert (request.sampling.temperature, request.sampling.top_p) == (0.25, 0.75)


def test_a_conversation_can_begin_anew_and_end(server: StandIn, talk) -> None:
    _, out, _ = talk(server.url, "One", "/reset", "Two", "/what", "/quit", "Three")
    assert [message["content"] for message in server.template.messages] == ["Two"]
    assert len(server.engine.admitted) == 2
    assert "/reset starts a new conversation" in out


def test_a_thought_is_no_part_of_what_is_sent_back(server: StandIn, talk) -> None:
    server.engine.reply = "<think>Let me see.</think>Yes."
    _, out, _ = talk(server.url, "Is it?", "Sure?")
    assert "Let me see.\n\nYes.\n" in out
    assert server.template.messages[1]["content"] == "Yes."


def test_a_model_gives_the_terminal_no_orders(server: StandIn, talk) -> None:
    server.engine.reply = "\x1b]0;title\x07\x1b[2J[red]red[/red]\u009b31m\r\tend"
    _, out, _ = talk(server.url, "Go")
    assert "\N{REPLACEMENT CHARACTER}]0;title\N{REPLACEMENT CHARACTER}" in out
    assert "[red]red[/red]" in out
    assert not {"\x1b", "\x07", "\u009b", "\r"} & set(out)


def test_what_cannot_be_is_one_line_and_status_2(server: StandIn, talk) -> None:
    assert "is not a valid URL" in talk("ftp://x", "hi")[2]
    assert talk(server.url, "hi", options=("--tp", "2"))[::2] == (
        2,
        f"numaserve: --tp applies only to a server that chat starts, and {server.url} is a running server: "
        "name a MODEL, or leave out --tp\n",
    )
    assert "server with several models, and m is a model" in talk("m", "hi", options=("--model", "x"))[2]
    assert talk(server.url, "hi", options=("--model", "tiny/bytes"))[0] == 0
    assert "answered 404" in talk(server.url, "hi", options=("--model", "another"))[2]
    server.engine.fail_after = 1
    status, _, err = talk(server.url, "hi")
    assert (status, "unused" in err) == (2, True)


def test_a_model_that_is_not_there_is_told_as_by_serve(talk) -> None:
    status, _, err = talk("no-such-model-here", "hi")
    assert status == 2
    assert err.splitlines()[-1].startswith("numaserve: no-such-model-here: no such file or folder")


def test_a_file_with_another_task_is_refused(talk, tmp_path: Path) -> None:
    file = tmp_path / "embed.yaml"
    file.write_text("task: embed\n")
    status, _, err = talk("m", "hi", options=("--config", str(file)))
    assert status == 2
    assert "chat needs the task generate, and the file sets the task embed: leave task out" in err


def test_an_interrupt_ends_the_answer_and_not_the_conversation(server: StandIn) -> None:
    server.engine.reply, server.engine.pause_after = "It goes on and on", 5
    command = [sys.executable, "-m", "numaserve.server.cli.main", "chat", server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"Go on\n")
        assert read(process.stdout, 5) == b"It go"
        process.send_signal(signal.SIGINT)
        until(lambda: server.engine.aborted)
        server.engine.pause_after = None
        process.stdin.write(b"And?\n")
        process.stdin.close()
        rest = process.stdout.read().decode()
        assert process.wait(PATIENCE_S) == 0
    assert "stopped" in rest
    assert "It goes on and on" in rest
    assert [message["content"] for message in server.template.messages] == ["Go on", "It go", "And?"]


def test_a_terminal_gets_its_line_back_at_the_end(server: StandIn) -> None:
    terminal, end = pty.openpty()
    try:
        command = [sys.executable, "-m", "numaserve.server.cli.main", "chat", server.url]
        environment = os.environ | {"TERM": "dumb", "NO_COLOR": "1"}
        with subprocess.Popen(command, stdin=end, stdout=end, stderr=end, env=environment) as process:
            os.close(end)
            shown = b""
            # What is typed before the prompt is there comes to another mode of the terminal.
            for prompts, typed in ((1, b"Go\n"), (2, b"\x04")):
                while shown.count(b"> ") < prompts:
                    shown += os.read(terminal, 4096)
                os.write(terminal, typed)
            assert process.wait(PATIENCE_S) == 0
            shown += os.read(terminal, 4096)
    finally:
        os.close(terminal)
    assert b", stop" in shown
    assert shown.endswith(b"> \r\n")
    assert b"\x1b[3m" not in shown


def read(pipe, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += pipe.read(1)
    return data


def until(condition) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
