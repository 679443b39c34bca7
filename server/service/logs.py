"""Log set-up: text for a person at a terminal, one JSON object a line for everything else."""

import logging
import sys
from functools import partial

from numaserve.server.api.access_log import JsonFormatter
from numaserve.server.config import LogLevel
from numaserve.workers.log_lines import log_what_nobody_caught


class TextFormatter(logging.Formatter):
    """``12:00:01 INFO message key=value``. Line breaks inside values are escaped."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line, with the record's fields behind its message."""
        fields = getattr(record, "fields", {})
        return " ".join([super().format(record), *(f"{key}={value!r}" for key, value in fields.items())])


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
