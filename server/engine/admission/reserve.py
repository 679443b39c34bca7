"""The part of a queue that is reserved for new clients, wherever requests wait."""

RESERVE = 1 / 8  # relative to the queue's limit and in addition to it, for clients that have no request in the queue


def reserve_of(requests: int) -> int:
    """Return the number of requests of new clients that may wait beyond a limit of `requests`; at least one."""
    return max(1, int(requests * RESERVE))
