"""API keys: compared in constant time, required on every route except `OPEN_PATHS`, with limits per key."""

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

_API_KEY = b"x-api-key"  # the header of Anthropic's clients
_AUTHORIZATION = b"authorization"
_KEY_HEADERS = frozenset({_AUTHORIZATION, _API_KEY})
_NAME_DIGITS = 16  # more than enough to distinguish any number of keys
OPEN_PATHS = frozenset({"/", "/health", "/livez", "/readyz", "/ping"})


# The clients whose requests share cached prefixes if the key file names no cache group.
PrefixSharing = Literal["everyone", "each_key", "keys_without_group"]


class Account(NamedTuple):
    """The account of a key: its name, weight, quota, rights and cache group."""

    name: str
    weight: float
    quota: Quota
    admin: bool = False
    cache_group: str = ""  # as named in the key file


class Callers(Protocol):
    """The identification of clients by the headers of their requests."""

    @property
    def sharing(self) -> PrefixSharing:
        """The clients that share cached prefixes."""

    def accept(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return whether the request is served. The other methods are called for accepted requests only."""

    def owner(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return an identifier of the owner of stored data; owners have no access to each other's data."""

    def account(self, headers: Iterable[tuple[bytes, bytes]]) -> Account:
        """Return the account that the request counts towards."""

    def client(self, headers: Iterable[tuple[bytes, bytes]]) -> Client:
        """Return the client that the request is scheduled for."""


class ApiKeys:
    """The accepted keys; never printed, never compared byte by byte."""

    def __init__(self, keys: Iterable[ApiKey], clock: Clock = time.monotonic, *, one_group: bool = False) -> None:
        """Accept these keys. `one_group`: see `cache_group_of`."""
        self._clock = clock
        self._one_group = one_group
        self._accounts: dict[bytes, Account] = {}
        self._clients: dict[bytes, Client] = {}
        self.replace(keys)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Accept only these keys from the next request on. A key that stays keeps its recorded use."""
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

    def cache_groups(self) -> set[str]:
        """Return the cache groups of all keys, as the prefix cache names them."""
        return {client.cache_group for client in self._clients.values()}

    def accept(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return whether a request presents a known key, as ``Authorization: Bearer KEY`` or ``x-api-key: KEY``.

        If a client sends both headers, both keys have to be known. A repeated header is refused.
        """
        presented = [(name, value) for name, value in headers if name in _KEY_HEADERS]
        names = [name for name, _ in presented]
        if not presented or len(set(names)) != len(names):
            return False
        known = [self._is_known(_key_in(name, value)) for name, value in presented]
        return all(known)

    @staticmethod
    def owner(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return an identifier of the owner of an accepted request: the same set of keys gives the same owner."""
        return b"".join(sorted({_digest(_key_in(name, value)) for name, value in headers if name in _KEY_HEADERS}))

    def account(self, headers: Iterable[tuple[bytes, bytes]]) -> Account:
        """Return the account that an accepted request counts towards."""
        return self._accounts[_counted(headers)]

    def client(self, headers: Iterable[tuple[bytes, bytes]]) -> Client:
        """Return the client of an accepted request, named by a digest of the key that the request counts towards."""
        digest = _counted(headers)
        return self._clients.get(digest) or _gone(digest)

    def _is_known(self, key: bytes) -> bool:
        # Digests have equal lengths and every key is compared: neither a key's length nor its position affects the
        # time.
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
    """Return a client for a key that was removed after its request was accepted; it shares no cache."""
    name = _name_of(digest)
    return Client(name, cache_group=cache_group_of("", name))


def _name_of(digest: bytes) -> str:
    return digest.hex()[:_NAME_DIGITS]


def _counted(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the digest of the key that a request counts towards: the ``Authorization`` key if there are two.

    Counting the pair as another client would give it limits of its own.
    """
    presented = {name: value for name, value in headers if name in _KEY_HEADERS}
    name = _AUTHORIZATION if _AUTHORIZATION in presented else _API_KEY
    return _digest(_key_in(name, presented[name]))


def _key_in(name: bytes, value: bytes) -> bytes:
    """Return the key in a header; an unknown key if the authorization scheme is not Bearer."""
    if name == _API_KEY:
        return value.strip()
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
