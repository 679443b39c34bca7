"""Requests that a gateway passes on, with a header that says whose they are."""

from collections.abc import Mapping

import pytest
from numaserve.server.http.auth.key_file import ApiKey
from numaserve.server.http.auth.keys import Account, ApiKeys
from numaserve.server.http.auth.passed_clients import PASSED_HEADER, PassedClients, passed_header
from numaserve.server.http.auth.quota import KeyLimits, OverLimit
from numaserve.server.scheduler.client import EVERYBODY, Client

Headers = list[tuple[bytes, bytes]]


def bearer(key: str) -> Headers:
    return [(b"authorization", b"Bearer " + key.encode())]


def passed(keys: ApiKeys, key: str) -> Headers:
    headers = bearer(key)
    return [(PASSED_HEADER, passed_header(keys.client(headers), keys.owner(headers), keys.account(headers)))]


def spent(account: Account, requests: int) -> None:
    for _ in range(requests):
        account.quota.leave(account.quota.enter(lambda: 0))


def keys_with(limits: Mapping[str, KeyLimits]) -> ApiKeys:
    return ApiKeys([ApiKey(key, f"name-of-{key}", 2.0, limit) for key, limit in limits.items()], lambda: 0.0)


def test_a_client_is_the_same_before_and_behind_the_gateway() -> None:
    keys = keys_with({"a": KeyLimits(), "b": KeyLimits()})
    behind = PassedClients(lambda: 0.0)
    for key in "ab":
        assert behind.accept(passed(keys, key))
        assert behind.client(passed(keys, key)) == keys.client(bearer(key))
        assert behind.owner(passed(keys, key)) == keys.owner(bearer(key))
        account = behind.account(passed(keys, key))
        assert (account.name, account.weight, account.admin) == (f"name-of-{key}", 2.0, False)


def test_without_keys_clients_are_told_apart_and_own_everything_together() -> None:
    behind = PassedClients(lambda: 0.0)
    headers = [(PASSED_HEADER, passed_header(Client("192.0.2.1")))]
    assert behind.client(headers) == Client("192.0.2.1")
    assert behind.owner(headers) == b""
    assert behind.account(headers).quota.has_rates is False
    assert not behind.account(headers).admin
    headers = [(PASSED_HEADER, passed_header(Client("127.0.0.1"), is_local=True))]
    assert behind.account(headers).admin


def test_rights_are_those_of_the_key_and_the_gateway_itself_has_none() -> None:
    keys, behind = ApiKeys([ApiKey("user"), ApiKey("root", admin=True)]), PassedClients(lambda: 0.0)
    assert [behind.account(passed(keys, key)).admin for key in ("user", "root")] == [False, True]
    assert not behind.account([]).admin


def test_what_the_gateway_itself_asks_for_is_nobodys() -> None:
    behind = PassedClients(lambda: 0.0)
    assert behind.accept([])
    assert behind.client([]) == EVERYBODY


def test_limits_hold_for_each_client_and_follow_the_key_file() -> None:
    keys = keys_with({"a": KeyLimits(requests_per_minute=2), "b": KeyLimits(requests_per_minute=1)})
    behind = PassedClients(lambda: 0.0)
    spent(behind.account(passed(keys, "a")), 2)
    spent(behind.account(passed(keys, "b")), 1)
    with pytest.raises(OverLimit):
        spent(behind.account(passed(keys, "a")), 1)
    keys.replace([ApiKey("a", limits=KeyLimits(requests_per_minute=3)), ApiKey("b")])
    spent(behind.account(passed(keys, "a")), 1)  # two of the three had been used
    with pytest.raises(OverLimit):
        spent(behind.account(passed(keys, "a")), 1)
    spent(behind.account(passed(keys, "b")), 100)
