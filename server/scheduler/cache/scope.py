"""The scope of a cached prefix: the requests that may find it."""

from hashlib import blake2b
from typing import NamedTuple

_DIGEST_BYTES = 16


class CacheScope(NamedTuple):
    """The scope of the requests of one cache group and one salt. Each field keeps other requests out.

    A named tuple rather than a frozen dataclass, whose hash and comparison run in Python: the radix tree finds the root
    of a scope at each attempt to admit a sequence.
    """

    group: str = ""  # `Client.cache_group`; no group has a NUL in it, a salt may
    salt: str = ""  # of the request

    @property
    def public(self) -> bool:
        """True for the scope of requests with neither group nor salt. Routers read of no other scope."""
        return not (self.group or self.salt)

    @property
    def digest(self) -> str:
        """A short text for keys that name the scope: a salt may take a KiB, and differ in each request. Empty for the
        public scope. Two scopes with the same digest cannot be found."""
        if self.public:
            return ""
        return blake2b(f"{self.group}\0{self.salt}".encode(), digest_size=_DIGEST_BYTES).hexdigest()


COMMON_SCOPE = CacheScope()
