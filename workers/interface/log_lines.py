"""A worker's log records, one per line of its standard error, separate from its messages.

The front end reads the records and writes them to its own log, in the log's format. Other lines come from native code,
and from crashes; records differ from such lines by the first character.
"""

import logging
import sys
import threading
from types import TracebackType

import msgspec

# The record separator of JSON text sequences (RFC 7464): hardly any other line begins with it.
_MARK = b"\x1e"


class LogLine(msgspec.Struct, frozen=True):
    """A log record. `level` is a level of the module logging."""

    level: int
    logger: str
    message: str
    exception: str | None = None  # a traceback


def decode_line(line: bytes) -> LogLine | None:
    """Return the record of a line without its newline; None when the line is no record."""
    if not line.startswith(_MARK):
        return None
    try:
        return msgspec.json.decode(line[len(_MARK) :], type=LogLine)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class LineFormatter(logging.Formatter):
    """Formats records as log lines for the front end."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its newline."""
        exception = self.formatException(record.exc_info) if record.exc_info else None
        line = LogLine(record.levelno, record.name, record.getMessage(), exception)
        return (_MARK + msgspec.json.encode(line)).decode()


def set_up_logging() -> None:
    """Send records from level `info` on, warnings and uncaught exceptions to standard error, as log lines.

    The front end drops records below its own level.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    log_what_nobody_caught()


def log_what_nobody_caught() -> None:
    """Log warnings, and exceptions that end a thread or the process."""
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda caught: _uncaught(caught.exc_type, caught.exc_value, caught.exc_traceback)


def _uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if error is not None and not issubclass(kind, SystemExit):
        logging.getLogger(__name__).critical("uncaught: %r", error, exc_info=(kind, error, trace))
