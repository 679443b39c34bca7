import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
from numaserve.server.config.serve import LogFormat
from numaserve.server.http.access_log import JsonFormatter
from numaserve.server.service.process.logs import TextFormatter, block, is_text, set_up_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def logging_restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts back what `set_up_logging` changes of the process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in ("uvicorn.error", "httpx")}
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr("threading.excepthook", lambda _caught: None)
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)
    root.setLevel(level)


def error_record() -> logging.LogRecord:
    try:
        raise ValueError("no\nsuch thing")
    except ValueError:
        return logging.LogRecord("x", logging.ERROR, "", 0, "it failed", None, sys.exc_info())


def test_fields_follow_the_message_and_cannot_forge_a_line() -> None:
    record = logging.makeLogRecord({"msg": "request", "levelname": "INFO", "fields": {"id": "a\nb", "status": 200}})
    line = TextFormatter().format(record)
    assert line.endswith("INFO request id='a\\nb' status=200")
    assert "\n" not in line


@pytest.mark.parametrize("terminal", [True, False])
def test_a_message_cannot_forge_a_line_nor_a_colour(terminal: bool) -> None:
    record = logging.makeLogRecord({"msg": "é 'm'\n12:00:00 INFO \x1b[31mfake", "levelname": "INFO"})
    line = TextFormatter(terminal=terminal).format(record)
    assert line.endswith("INFO é 'm'\\n12:00:00 INFO \\x1b[31mfake")


def test_a_block_is_aligned_lines_for_a_person_and_one_record_for_a_program() -> None:
    record = logging.makeLogRecord({"msg": "serving m", "levelname": "INFO"})
    record.__dict__ |= block([("a", "1"), ("longer", "x\nFAKE LINE")], {"one": 1})
    first, *others = TextFormatter().format(record).splitlines()
    assert first.endswith("INFO serving m")
    assert others == ["  a       1", "  longer  'x\\nFAKE LINE'"]
    line = JsonFormatter().format(record)
    assert len(line.splitlines()) == 1
    assert json.loads(line)["one"] == 1
    assert "rows" not in json.loads(line)
    assert TextFormatter(terminal=False).format(record).endswith("INFO serving m one=1"), "one line in a file"


def test_a_traceback_is_lines_on_a_terminal_and_a_field_in_a_file() -> None:
    first, *others = TextFormatter().format(error_record()).splitlines()
    assert first.endswith("ERROR it failed")
    assert others[0] == "Traceback (most recent call last):" and others[-2:] == ["ValueError: no", "such thing"]
    line = TextFormatter(terminal=False).format(error_record())
    assert "\n" not in line
    assert "ERROR it failed exception='Traceback (most recent call last):\\n" in line


def test_a_file_has_dates_and_a_terminal_has_none() -> None:
    record = logging.makeLogRecord({"msg": "m", "levelname": "INFO", "created": 0.0})
    assert TextFormatter(terminal=False).format(record).split()[0] in {"1970-01-01", "1969-12-31"}
    assert TextFormatter().format(record)[8:] == " INFO m"


@pytest.mark.parametrize(
    ("level", "code"),
    [(logging.DEBUG, "2"), (logging.INFO, "32"), (logging.WARNING, "33"), (logging.ERROR, "31"), (50, "1;31")],
)
def test_a_level_has_its_colour(level: int, code: str) -> None:
    name = logging.getLevelName(level)
    record = logging.makeLogRecord({"msg": "m", "levelno": level, "levelname": name})
    assert TextFormatter(colour=True).format(record)[8:] == f" \x1b[{code}m{name}\x1b[0m m"


def logged(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, log_format: LogFormat) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    set_up_logging("info", log_format)
    logging.getLogger("x").warning("careful")
    return stream.getvalue()


@pytest.mark.usefixtures("logging_restored")
class TestFormats:
    @pytest.mark.parametrize(
        ("log_format", "stream", "text"),
        [
            ("auto", Terminal, True),
            ("auto", io.StringIO, False),
            ("text", Terminal, True),
            ("text", io.StringIO, True),
            ("json", Terminal, False),
            ("json", io.StringIO, False),
        ],
    )
    def test_the_option_or_the_stream_decides(
        self, log_format: LogFormat, stream: type[io.StringIO], text: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        line = logged(monkeypatch, stream(), log_format)
        assert is_text(log_format) == text
        assert line.endswith("careful\n") if text else json.loads(line)["message"] == "careful"

    @pytest.mark.parametrize(
        ("variables", "coloured"),
        [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
    )
    def test_a_terminal_has_colours_unless_they_are_refused(
        self, variables: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("NO_COLOR", "TERM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert ("\x1b[33mWARNING\x1b[0m" in logged(monkeypatch, Terminal(), "text")) == coloured

    def test_a_file_has_no_colours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert "\x1b" not in logged(monkeypatch, io.StringIO(), "text")
