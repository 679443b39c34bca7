"""The sender of trace spans, as the options configure it."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from numaserve.server.common.version import installed_version
from numaserve.server.config.serve import ServeConfig
from numaserve.workers.interface.errors import OperatorError

if TYPE_CHECKING:
    from numaserve.server.tracing.spans import Spans

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NEEDED = "opentelemetry.exporter.otlp.proto.http"
_INSTALL = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"

_log = logging.getLogger(__name__)


def open_spans(config: ServeConfig, model: str) -> Spans | None:
    """Return the sender of a span for each request of `model`; None, without any import, if tracing is off.

    Raises `OperatorError` for an invalid address, and if the packages for tracing are not installed.
    """
    endpoint = config.otlp_endpoint
    if endpoint is None and not any(os.environ.get(name) for name in _ENDPOINTS):
        return None
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise OperatorError(f"--otlp-endpoint {endpoint} is not an HTTP URL: use a URL like http://127.0.0.1:4318")
    if not _is_installed():
        if endpoint is not None:
            raise OperatorError(f"--otlp-endpoint needs OpenTelemetry, which is not installed: run `{_INSTALL}`")
        # An address in the environment may be meant for all programs of a host.
        _log.warning(
            "no traces are sent: OTEL_EXPORTER_OTLP_ENDPOINT is set and OpenTelemetry is not installed "
            f"(to install it, run `{_INSTALL}`)"
        )
        return None
    from numaserve.server.tracing.spans import Spans  # noqa: PLC0415 half a second

    return Spans(endpoint, model=model, version=installed_version())


def _is_installed() -> bool:
    try:
        return find_spec(_NEEDED) is not None and find_spec("opentelemetry.sdk") is not None
    except ModuleNotFoundError:  # one of its dependencies
        return False
