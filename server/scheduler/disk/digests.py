"""The names of prefixes on disk: chains of SHA-256 over the keys of their pages.

In memory the keys of text are the tokens themselves. On disk a digest stands for them, which is as good: nobody can
find two prefixes with the same one.
"""

from array import array
from hashlib import sha256

from numaserve.server.scheduler.cache.keys import PageKey
from numaserve.server.scheduler.cache.scope import CacheScope
from numaserve.server.scheduler.sequence import Sequence

_TOKENS, _MIXED, _ROOT = b"t", b"m", b"r"  # no page of one kind has the digest of one of another kind


def digests_of(seq: Sequence, pages: int, page_size: int) -> list[bytes]:
    """Return the digests of the prefixes of `seq` of 1, 2, ... pages, at least `pages` of them.

    The sequence keeps them: its keys only grow.
    """
    digests, keys = seq.digests, seq.keys
    last = digests[-1] if digests else root_digest(seq.request.scope)
    for index in range(len(digests), pages):
        last = next_digest(last, tuple(keys[index * page_size : (index + 1) * page_size]))
        digests.append(last)
    return digests


def root_digest(scope: CacheScope) -> bytes:
    """Return the digest of the empty prefix of a scope without a salt. Loads of one adapter have the same."""
    adapter = "" if scope.adapter is None else scope.adapter.digest
    return sha256(_ROOT + f"{scope.group}\0{adapter}".encode()).digest()


def next_digest(parent: bytes, key: PageKey) -> bytes:
    """Return the digest of a prefix with one page more."""
    tokens = [each for each in key if isinstance(each, int)]
    if len(tokens) == len(key):
        return sha256(_TOKENS + parent + array("i", tokens).tobytes()).digest()
    parts = [each if isinstance(each, bytes) else each.to_bytes(4, "little") for each in key]
    return sha256(_MIXED + parent + b"".join(len(each).to_bytes(2, "big") + each for each in parts)).digest()
