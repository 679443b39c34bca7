"""The access log: one structured line per request. Outputs are never logged, prompts only if the operator asks."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from numaserve.server.http.explain import Problem
from numaserve.server.http.fields.unknown_fields import UnknownFields

if TYPE_CHECKING:  # the log needs this file long before the HTTP side is imported
    from starlette.requests import Request
    from starlette.types import Scope

_SAFE_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")
_logger = logging.getLogger("numaserve.request")


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON. Line breaks inside values are escaped, so no value can forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for `record`, without a line break at its end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


@dataclass
class RequestRecord:
    """The record of one HTTP request, from its start to its line in the log. Durations are in seconds."""

    request_id: str
    method: str
    started: float = field(default_factory=time.perf_counter)
    model: str = ""  # set by a gateway to several models, and for requests of an adapter
    key_name: str = ""  # the operator's name for the request's key
    status: int = 0  # 0 until an answer begins
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0  # so far
    finish_reason: str | None = None
    ttft: float | None = None
    prompt: object = None
    unknown_fields: UnknownFields | None = None
    left_out: Sequence[Problem] = ()  # images that the model does not see
    timeout: float | None = None  # seconds after `started`; None: no limit

    @property
    def time_left(self) -> float | None:
        """The seconds left until the request's timeout; negative after it."""
        return None if self.timeout is None else self.timeout - (time.perf_counter() - self.started)

    def tokens_used(self) -> int:
        """Return the prompt and output tokens so far, counted as in an answer's usage."""
        return self.prompt_tokens + self.output_tokens

    def saw_output(self) -> None:
        """Note the time of the first tokens; later ones change nothing."""
        if self.ttft is None:
            self.ttft = time.perf_counter() - self.started

    def write(self, route: str) -> None:
        """Log the line. Probes and scrapes, which come every few seconds, are logged at level debug."""
        fields: dict[str, object] = {
            "request_id": self.request_id,
            "method": self.method,
            "route": route,
            "status": self.status,
            "duration": round(time.perf_counter() - self.started, 6),
        }
        if self.model:
            fields["model"] = self.model
        if self.key_name:
            fields["key"] = self.key_name
        if self.prompt_tokens:
            fields |= {
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "output_tokens": self.output_tokens,
                "finish_reason": self.finish_reason,
                "ttft": None if self.ttft is None else round(self.ttft, 6),
            }
        if self.prompt is not None:
            fields["prompt"] = self.prompt
        level = logging.INFO if self.method == "POST" or self.status >= 400 else logging.DEBUG
        _logger.log(level, "request", extra={"fields": fields})


def record_of(request: Request) -> RequestRecord:
    """Return the record that `RequestScope` made."""
    return cast(RequestRecord, request.state.record)


def request_id_of(scope: Scope) -> str:
    """Return the client's X-Request-Id if it is short and harmless, else a new id."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            if _SAFE_ID.fullmatch(value):
                return str(value.decode("ascii"))
            break
    return f"req-{secrets.token_hex(16)}"
