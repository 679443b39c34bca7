"""The scope of a cached prefix: the requests that may find it."""

from typing import NewType

# A text rather than a tuple: a text keeps its hash, and the suffix drafter has the scope in the key of every token.
CacheScope = NewType("CacheScope", str)


def cache_scope(group: str = "", salt: str = "") -> CacheScope:
    """Return the scope of the requests of one cache group and one salt; no group has a NUL in it, a salt may.

    The empty scope is that of requests with neither. Routers read of no other scope.
    """
    return CacheScope(f"{group}\0{salt}" if group or salt else "")


COMMON_SCOPE = cache_scope()
