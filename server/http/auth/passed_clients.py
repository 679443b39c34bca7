"""Who sends a request that a gateway passes on: it has checked the key, and says in a header whose it was.

The header is believed by a server that only its gateway can reach, and by no other.
"""

from collections.abc import Iterable

import msgspec
from numaserve.server.engine.clock import Clock
from numaserve.server.http.auth.keys import Account, PrefixSharing, cache_group_of, sharing_of
from numaserve.server.http.auth.quota import UNLIMITED, KeyLimits, Quota
from numaserve.server.scheduler.client import EVERYBODY, Client

PASSED_HEADER = b"x-numaserve-client"


class PassedClient(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of the header: name and weight of the client, owner of what is kept, and of the key its name, limits
    and cache group."""

    name: str
    weight: float = 1.0
    owner: str = ""  # hexadecimal
    key: str = ""
    limits: KeyLimits | None = None
    cache_group: str = ""  # that the key file names


_NOBODY = PassedClient(EVERYBODY.name)  # whose request the gateway itself sends
_decoder = msgspec.json.Decoder(PassedClient)


class PassedClients:
    """The clients that a gateway names. Limits hold for each of them in this server."""

    def __init__(self, clock: Clock, *, one_group: bool = False) -> None:
        """`one_group` is as for `cache_group_of`: models differ in whether routers read of their caches."""
        self._clock = clock
        self._one_group = one_group
        self._unlimited = Quota(clock)
        self._quotas: dict[str, Quota] = {}  # of clients with limits, who are as many as there are keys

    @property
    def sharing(self) -> PrefixSharing:
        """The clients that share cached prefixes if the gateway requires keys."""
        return sharing_of(one_group=self._one_group)

    def accept(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Every request is served: the gateway has checked it."""
        return True

    def owner(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """What tells the callers apart, as the gateway's keys do."""
        return bytes.fromhex(_passed(headers).owner)

    def account(self, headers: Iterable[tuple[bytes, bytes]]) -> Account:
        """The account of the key that was presented to the gateway."""
        passed = _passed(headers)
        return Account(passed.key, passed.weight, self._quota(passed), cache_group=passed.cache_group)

    def client(self, headers: Iterable[tuple[bytes, bytes]]) -> Client:
        """The client."""
        passed = _passed(headers)
        if not passed.owner:  # nobody has a key
            return Client(passed.name, passed.weight)
        group = cache_group_of(passed.cache_group, passed.name, one_group=self._one_group)
        return Client(passed.name, passed.weight, group)

    def _quota(self, passed: PassedClient) -> Quota:
        if passed.limits is None:
            # What had limits that were taken away keeps no books any more.
            self._quotas.pop(passed.name, None)
            return self._unlimited
        quota = self._quotas.get(passed.name)
        if quota is None:
            quota = self._quotas[passed.name] = Quota(self._clock)
        if quota.limits != passed.limits:
            quota.change(passed.limits)
        return quota


def passed_header(client: Client, owner: bytes = b"", account: Account | None = None) -> bytes:
    """The header's value."""
    limits = UNLIMITED if account is None else account.quota.limits
    return msgspec.json.encode(
        PassedClient(
            client.name,
            client.weight,
            owner.hex(),
            "" if account is None else account.name,
            None if limits == UNLIMITED else limits,
            "" if account is None else account.cache_group,
        )
    )


def _passed(headers: Iterable[tuple[bytes, bytes]]) -> PassedClient:
    value = next((value for name, value in headers if name == PASSED_HEADER), None)
    return _NOBODY if value is None else _decoder.decode(value)
