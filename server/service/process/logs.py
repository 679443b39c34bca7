"""The log set-up: text for a terminal, one JSON object per line otherwise."""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from numaserve.server.config.serve import LogFormat, LogLevel
from numaserve.server.http.access_log import JsonFormatter
from numaserve.workers.interface.log_lines import log_what_nobody_caught

# SGR codes by minimum level: bold red for critical, red for errors; debug is dim.
_COLOURS = (
    (logging.CRITICAL, "1;31"),
    (logging.ERROR, "31"),
    (logging.WARNING, "33"),
    (logging.INFO, "32"),
)


def block(rows: Sequence[tuple[str, str]], fields: Mapping[str, object]) -> dict[str, object]:
    """Return the `extra` of a log record with `rows` for a person and `fields` for a program.

    `rows` are labels and texts. A terminal shows each as an indented line, in place of the fields.
    """
    return {"rows": rows, "fields": dict(fields)}


class TextFormatter(logging.Formatter):
    """The formatter of log records as text, one line per event: ``2026-01-31 12:00:01 INFO message key=value``.

    With `terminal`, times have no date, and the rows of a block or a traceback follow below the event's line. Line
    breaks and control characters inside messages and values are escaped, so that no value can forge a line.
    """

    def __init__(self, *, terminal: bool = True, colour: bool = False) -> None:
        super().__init__("%(message)s", "%H:%M:%S" if terminal else "%Y-%m-%d %H:%M:%S")
        self._terminal = terminal
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line without a final line break, and on a terminal the lines below it."""
        rows: Sequence[tuple[str, str]] = getattr(record, "rows", ()) if self._terminal else ()
        fields = {} if rows else dict(getattr(record, "fields", {}))
        width = max((len(label) for label, _ in rows), default=0)
        below = [f"  {label:{width}}  {_escaped(text)}" for label, text in rows]
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            if self._terminal:
                below += map(_on_one_line, trace.splitlines())
            else:
                fields["exception"] = trace
        start = f"{self.formatTime(record, self.datefmt)} {self._level(record)} {_on_one_line(record.getMessage())}"
        return "\n".join([" ".join([start, *(f"{key}={value!r}" for key, value in fields.items())]), *below])

    def _level(self, record: logging.LogRecord) -> str:
        if not self._colour:
            return record.levelname
        colour = next((code for least, code in _COLOURS if record.levelno >= least), "2")
        return f"\x1b[{colour}m{record.levelname}\x1b[0m"


def _escaped(text: str) -> str:
    """Return the text, or its Python literal if it has control characters, as a model's name may."""
    return text if text.isprintable() else repr(text)


def _on_one_line(text: str) -> str:
    """Return the text with its line breaks and control characters escaped."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def is_text(log_format: LogFormat) -> bool:
    """Return whether this process writes its log as text."""
    return log_format == "text" or (log_format == "auto" and sys.stderr.isatty())


def set_up_logging(level: LogLevel, log_format: LogFormat = "auto", model: str | None = None) -> None:
    """Send the log of this process to standard error. `model` is named in each line if there are several models."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(log_format))
    if model is not None:
        handler.addFilter(partial(_name_model, model))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    log_what_nobody_caught()
    # Both log every connection and request, which the server's own request log already does.
    for chatty in ("uvicorn.error", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _formatter(log_format: LogFormat) -> logging.Formatter:
    if not is_text(log_format):
        return JsonFormatter()
    terminal = sys.stderr.isatty()
    # An empty NO_COLOR counts as unset: https://no-color.org.
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return TextFormatter(terminal=terminal, colour=colour)


def _name_model(model: str, record: logging.LogRecord) -> bool:
    record.fields = {"model": model} | getattr(record, "fields", {})
    return True
