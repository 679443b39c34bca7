"""What can be wrong with the cache; none of it keeps a server from starting."""

from __future__ import annotations


class CacheError(Exception):
    """The cache cannot be used; the message is for a warning."""
