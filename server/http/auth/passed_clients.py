"""The client of a request that a gateway passes on: the gateway has checked the key and names the client in a header.

Only a server that no one but its gateway can reach trusts the header.
"""

from collections.abc import Iterable

import msgspec
from numaserve.server.engine.clock import Clock
from numaserve.server.http.auth.keys import Account, PrefixSharing, cache_group_of, sharing_of
from numaserve.server.http.auth.quota import UNLIMITED, KeyLimits, Quota
from numaserve.server.scheduler.client import EVERYBODY, Client

PASSED_HEADER = b"x-numaserve-client"


class PassedClient(msgspec.Struct, frozen=True, omit_defaults=True):
    """The header's content: the client's name and weight, the owner of stored data, the key's name, limits and cache
    group, and whether the client may load and unload adapters."""

    name: str
    weight: float = 1.0
    owner: str = ""  # hexadecimal
    key: str = ""
    limits: KeyLimits | None = None
    cache_group: str = ""  # as named in the key file
    admin: bool = False


_NOBODY = PassedClient(EVERYBODY.name)  # for requests that the gateway itself sends
_decoder = msgspec.json.Decoder(PassedClient)


class PassedClients:
    """The clients that a gateway names. This server applies the limits to each client by itself."""

    def __init__(self, clock: Clock, *, one_group: bool = False) -> None:
        """Serve these clients. `one_group`: see `cache_group_of`; models differ in whether routers observe their
        caches."""
        self._clock = clock
        self._one_group = one_group
        self._unlimited = Quota(clock)
        self._quotas: dict[str, Quota] = {}  # of clients with limits; at most one per key

    @property
    def sharing(self) -> PrefixSharing:
        """The clients that share cached prefixes if the gateway requires keys."""
        return sharing_of(one_group=self._one_group)

    def accept(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return True: the gateway has checked the request."""
        return True

    def owner(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the owner of stored data, as the gateway's keys identify it."""
        return bytes.fromhex(_passed(headers).owner)

    def account(self, headers: Iterable[tuple[bytes, bytes]]) -> Account:
        """Return the account of the key that was presented to the gateway."""
        passed = _passed(headers)
        return Account(passed.key, passed.weight, self._quota(passed), passed.admin, passed.cache_group)

    def client(self, headers: Iterable[tuple[bytes, bytes]]) -> Client:
        """Return the client that the gateway names."""
        passed = _passed(headers)
        if not passed.owner:  # the gateway requires no keys
            return Client(passed.name, passed.weight)
        group = cache_group_of(passed.cache_group, passed.name, one_group=self._one_group)
        return Client(passed.name, passed.weight, group)

    def _quota(self, passed: PassedClient) -> Quota:
        if passed.limits is None:
            # Once a client's limits are removed, its use is no longer counted.
            self._quotas.pop(passed.name, None)
            return self._unlimited
        quota = self._quotas.get(passed.name)
        if quota is None:
            quota = self._quotas[passed.name] = Quota(self._clock)
        if quota.limits != passed.limits:
            quota.change(passed.limits)
        return quota


def passed_header(
    client: Client, owner: bytes = b"", account: Account | None = None, *, is_local: bool = False
) -> bytes:
    """Return the header's value. Without an account the client may load and unload adapters if `is_local`."""
    limits = UNLIMITED if account is None else account.quota.limits
    return msgspec.json.encode(
        PassedClient(
            client.name,
            client.weight,
            owner.hex(),
            "" if account is None else account.name,
            None if limits == UNLIMITED else limits,
            "" if account is None else account.cache_group,
            is_local if account is None else account.admin,
        )
    )


def _passed(headers: Iterable[tuple[bytes, bytes]]) -> PassedClient:
    value = next((value for name, value in headers if name == PASSED_HEADER), None)
    return _NOBODY if value is None else _decoder.decode(value)
