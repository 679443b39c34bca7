"""The limit on open files, and the connections that it leaves room for."""

import logging
import resource

from numaserve.workers.errors import OperatorError

_MAX_DESCRIPTORS = 1 << 16
# Kept for the workers' sockets and pipes, the log and the files that libraries open.
_OTHER_DESCRIPTORS = 128
_MIN_CONNECTIONS = 16  # a few clients, their health probes and a scrape of the metrics

_log = logging.getLogger(__name__)


def max_connections() -> int:
    """The connections that the limit on open files leaves room for, after raising it as far as this process may.

    Raises `OperatorError` when they are too few to serve anybody.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    connections = wanted - _OTHER_DESCRIPTORS
    if connections < _MIN_CONNECTIONS:
        least = _OTHER_DESCRIPTORS + _MIN_CONNECTIONS
        raise OperatorError(
            f"this process may open {wanted} files and needs {least} or more: raise the limit (ulimit -n, LimitNOFILE=)"
        )
    return connections


def check_descriptors(max_running_requests: int) -> None:
    """Warn when fewer clients can connect than requests may run. Raises `OperatorError` as `max_connections` does."""
    connections = max_connections()
    if connections < max_running_requests:
        _log.warning(
            "the limit on open files leaves room for %d connections, fewer than the %d requests that may run: "
            "raise it (ulimit -n, LimitNOFILE=)",
            connections,
            max_running_requests,
        )
