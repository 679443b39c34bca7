"""Errors of the cache; none of them keeps a server from starting."""


class CacheError(Exception):
    """The cache cannot be used; the message is for a warning."""
