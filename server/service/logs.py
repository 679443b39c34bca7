"""Log set-up: text for a person at a terminal, one JSON object a line for everything else."""

import logging
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from numaserve.server.api.access_log import JsonFormatter
from numaserve.server.config import LogLevel
from numaserve.workers.log_lines import log_what_nobody_caught


def block(rows: Sequence[tuple[str, str]], fields: Mapping[str, object]) -> dict[str, object]:
    """The `extra` of a record that is several lines for a person and `fields` for a program.

    `rows` are labels and texts. A terminal shows each as an indented line, in place of the fields.
    """
    return {"rows": rows, "fields": dict(fields)}


class TextFormatter(logging.Formatter):
    """``12:00:01 INFO message key=value``, or rows below the message. Line breaks inside values are escaped."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line with the record's fields after its message, or the line with the record's rows below it."""
        if rows := getattr(record, "rows", None):
            width = max(len(label) for label, _ in rows)
            lines = (f"  {label:{width}}  {_escaped(text)}" for label, text in rows)
            return "\n".join([super().format(record), *lines])
        fields = getattr(record, "fields", {})
        return " ".join([super().format(record), *(f"{key}={value!r}" for key, value in fields.items())])


def _escaped(text: str) -> str:
    """The text with line breaks and control characters as Python writes them: a model's name may hold some."""
    return text if text.isprintable() else repr(text)


def set_up_logging(level: LogLevel, model: str | None = None) -> None:
    """Send the log of this process to standard error. Its lines name `model` where there are several."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if sys.stderr.isatty() else JsonFormatter())
    if model is not None:
        handler.addFilter(partial(_name_model, model))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    log_what_nobody_caught()
    # Both tell about every connection and request, which the server's own request log does once.
    for chatty in ("uvicorn.error", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _name_model(model: str, record: logging.LogRecord) -> bool:
    record.fields = {"model": model} | getattr(record, "fields", {})
    return True
