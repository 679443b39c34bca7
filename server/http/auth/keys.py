"""API keys: compared in constant time, asked for on every route but the health probes, and held to their limits."""

import hashlib
import hmac
import time
from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple, Protocol

from numaserve.server.engine.clock import Clock
from numaserve.server.http.auth.key_file import ApiKey
from numaserve.server.http.auth.quota import Quota
from numaserve.server.scheduler.client import Client

_API_KEY = b"x-api-key"  # as Anthropic's clients send it
_AUTHORIZATION = b"authorization"
_KEY_HEADERS = frozenset({_AUTHORIZATION, _API_KEY})
_NAME_DIGITS = 16  # more than tell any number of keys apart
OPEN_PATHS = frozenset({"/", "/health", "/livez", "/readyz", "/ping"})


# The clients whose requests share cached prefixes where the key file names no cache group.
PrefixSharing = Literal["everyone", "each_key", "keys_without_group"]


class Account(NamedTuple):
    """What a key stands for."""

    name: str
    weight: float
    quota: Quota
    admin: bool = False
    cache_group: str = ""  # that the key file names


class Callers(Protocol):
    """Who sends requests, by their headers."""

    @property
    def sharing(self) -> PrefixSharing:
        """The clients that share cached prefixes."""

    def accept(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether the request is served; the others are asked of accepted ones only."""

    def owner(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """What tells callers apart: what one of them keeps here is not another's."""

    def account(self, headers: Iterable[tuple[bytes, bytes]]) -> Account:
        """The account that the request counts for."""

    def client(self, headers: Iterable[tuple[bytes, bytes]]) -> Client:
        """The client that shares the server with others."""


class ApiKeys:
    """The keys that are accepted; never printed, never compared byte by byte."""

    def __init__(self, keys: Iterable[ApiKey], clock: Clock = time.monotonic, *, one_group: bool = False) -> None:
        """`one_group` is as for `cache_group_of`."""
        self._clock = clock
        self._one_group = one_group
        self._accounts: dict[bytes, Account] = {}
        self._clients: dict[bytes, Client] = {}
        self.replace(keys)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Accept these from the next request on, and no others. What was used with a key that stays, stays used."""
        by_digest = {_digest(each.key.encode()): each for each in keys}
        if not by_digest:
            raise ValueError("at least one API key is required")
        accounts, clients = {}, {}
        for digest, key in by_digest.items():
            known = self._accounts.get(digest)
            quota = Quota(self._clock) if known is None else known.quota
            quota.change(key.limits)
            accounts[digest] = Account(key.name, key.weight, quota, key.admin, key.cache_group)
            name = _name_of(digest)
            group = cache_group_of(key.cache_group, name, one_group=self._one_group)
            clients[digest] = Client(name, key.weight, group)
        self._accounts, self._clients = accounts, clients

    @property
    def sharing(self) -> PrefixSharing:
        """The clients that share cached prefixes."""
        return sharing_of(one_group=self._one_group)

    def count_groups(self) -> Counter[str]:
        """Return the number of keys by the cache group that the key file names; empty for none."""
        return Counter(account.cache_group for account in self._accounts.values())

    def accept(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request presents a known key, as ``Authorization: Bearer KEY`` or ``x-api-key: KEY``.

        A client may send both: then both have to be known. The same header twice is refused.
        """
        presented = [(name, value) for name, value in headers if name in _KEY_HEADERS]
        names = [name for name, _ in presented]
        if not presented or len(set(names)) != len(names):
            return False
        known = [self._is_known(_key_in(name, value)) for name, value in presented]
        return all(known)

    @staticmethod
    def owner(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """What tells the callers of an accepted request apart: who sends the same keys is the same."""
        return b"".join(sorted({_digest(_key_in(name, value)) for name, value in headers if name in _KEY_HEADERS}))

    def account(self, headers: Iterable[tuple[bytes, bytes]]) -> Account:
        """The account that a request counts for, which was just accepted."""
        return self._accounts[_counted(headers)]

    def client(self, headers: Iterable[tuple[bytes, bytes]]) -> Client:
        """The client that a request is of, which was accepted; named by a digest of the key it counts for."""
        digest = _counted(headers)
        return self._clients.get(digest) or _gone(digest)

    def _is_known(self, key: bytes) -> bool:
        # Digests have equal lengths and every key is compared, so neither a key's length nor its place shows in time.
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in self._accounts]
        return any(matches)


def cache_group_of(named: str, client: str, *, one_group: bool = False) -> str:
    """Return the cache group of a client with a key: the one that the key file names, else a group of its own.

    With `one_group` clients without a named group are in the common group. The two kinds of names never meet.
    """
    if named:
        return f"group {named}"
    return "" if one_group else f"key {client}"


def sharing_of(*, one_group: bool) -> PrefixSharing:
    """Return the clients that share cached prefixes by `cache_group_of`."""
    return "keys_without_group" if one_group else "each_key"


def _gone(digest: bytes) -> Client:
    """The client of a key that was taken away after its request was accepted: it shares nothing."""
    name = _name_of(digest)
    return Client(name, cache_group=cache_group_of("", name))


def _name_of(digest: bytes) -> str:
    return digest.hex()[:_NAME_DIGITS]


def _counted(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The digest of the key that a request counts for: of two keys the one in ``Authorization``. Both together as one
    caller more would be limits of their own."""
    presented = {name: value for name, value in headers if name in _KEY_HEADERS}
    name = _AUTHORIZATION if _AUTHORIZATION in presented else _API_KEY
    return _digest(_key_in(name, presented[name]))


def _key_in(name: bytes, value: bytes) -> bytes:
    """The key in a header; none that is known where its scheme is another."""
    if name == _API_KEY:
        return value.strip()
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
