"""The limit on open files, and the connections that it leaves room for."""

import logging
import resource

from numaserve.workers.interface.errors import OperatorError

_MAX_DESCRIPTORS = 1 << 16
# Kept for the workers' sockets and pipes, the log and the files that libraries open.
_OTHER_DESCRIPTORS = 128
_MIN_CONNECTIONS = 16  # a few clients, their health probes and a scrape of the metrics

_log = logging.getLogger(__name__)


def max_connections(each: int = 1, others: int = 0) -> int:
    """The connections of clients that the limit on open files leaves room for, after raising it as far as this process
    may, where one takes `each` descriptors, and `others` are kept for something else.

    Raises `OperatorError` when they are too few to serve anybody.
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
    """The connections that there may be, as `max_connections` tells them; a warning when fewer clients can connect than
    requests may run."""
    connections = max_connections(each, others)
    if connections < max_running_requests:
        _log.warning(
            "the limit on open files allows %d connections, fewer than the maximum of %d requests: raise the limit "
            "(ulimit -n, LimitNOFILE=)",
            connections,
            max_running_requests,
        )
    return connections
