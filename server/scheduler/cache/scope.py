"""The scope of a cached prefix: the requests that may find it."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from numaserve.server.scheduler.adapter import Adapter

_DIGEST_BYTES = 16


class CacheScope(NamedTuple):
    """The scope of the requests of one cache group, one salt and one adapter. Each field keeps other requests out.

    A named tuple rather than a frozen dataclass, whose hash and comparison run in Python: the radix tree finds the root
    of a scope at each attempt to admit a sequence.
    """

    group: str = ""  # `Client.cache_group`; no group has a NUL in it, a salt may
    salt: str = ""  # of the request
    adapter: Adapter | None = None  # whose keys and values differ from those of the model alone

    @property
    def public(self) -> bool:
        """True for a scope of requests with neither group nor salt. Routers read of no other scope."""
        return not (self.group or self.salt)

    @property
    def digest(self) -> str:
        """A short text for keys that name group and salt: a salt may take a KiB, and differ in each request. Empty for
        a public scope. Two other scopes with the same digest cannot be found.

        The adapter is left out: texts are private to a group and a salt, and texts of other adapters are good drafts.
        """
        if self.public:
            return ""
        return blake2b(f"{self.group}\0{self.salt}".encode(), digest_size=_DIGEST_BYTES).hexdigest()

    @property
    def without_adapter(self) -> CacheScope:
        """The scope of what does not depend on an adapter, such as the features of images: no adapter changes a
        tower."""
        return self if self.adapter is None else self._replace(adapter=None)


COMMON_SCOPE = CacheScope()
