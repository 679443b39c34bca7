"""The limit on open files, and the number of connections that it allows."""

import logging
import resource

from numaserve.workers.interface.errors import OperatorError

_MAX_DESCRIPTORS = 1 << 16
# Reserved for the workers' sockets and pipes, the log and the files that libraries open.
_OTHER_DESCRIPTORS = 128
_MIN_CONNECTIONS = 16  # a few clients, their health probes and a scrape of the metrics

_log = logging.getLogger(__name__)


def max_connections(each: int = 1, others: int = 0) -> int:
    """Raise the limit on open files as far as allowed, and return the number of client connections that it allows.

    A connection takes `each` descriptors; `others` are reserved. Raises `OperatorError` if too few connections remain.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    others += _OTHER_DESCRIPTORS
    connections = (wanted - others) // each
    if connections < _MIN_CONNECTIONS:
        least = others + each * _MIN_CONNECTIONS
        raise OperatorError(
            f"the limit on open files is {wanted} and the server needs {least} or more: raise the limit (ulimit -n, "
            "LimitNOFILE=)"
        )
    return connections


def check_descriptors(max_running_requests: int, each: int = 1, others: int = 0) -> int:
    """Return `max_connections`, and log a warning if fewer clients can connect than requests may run."""
    connections = max_connections(each, others)
    if connections < max_running_requests:
        _log.warning(
            "the limit on open files allows %d connections, fewer than the maximum of %d requests: raise the limit "
            "(ulimit -n, LimitNOFILE=)",
            connections,
            max_running_requests,
        )
    return connections
