"""The cache groups whose records on disk stay."""

from numaserve.server.http.auth.key_file import ApiKey
from numaserve.server.http.auth.keys import ApiKeys
from numaserve.server.http.auth.passed_clients import PassedClients
from numaserve.server.service.kv_disk import cache_groups


def groups_of(keys: ApiKeys) -> set[str]:
    """The groups of the clients of requests with each key."""
    return {keys.client([(b"x-api-key", name)]).cache_group for name in (b"one", b"two", b"three")}


def test_the_groups_of_the_keys_are_those_of_their_requests() -> None:
    named = [ApiKey("one"), ApiKey("two", cache_group="team"), ApiKey("three", cache_group="team")]
    own = ApiKeys(named)
    assert cache_groups(own) == groups_of(own)
    assert "group team" in groups_of(own)
    assert "" not in groups_of(own)
    shared = ApiKeys(named, one_group=True)
    assert cache_groups(shared) == groups_of(shared) == {"", "group team"}
    own.replace(named[:1])
    assert "group team" not in cache_groups(own)  # type: ignore[operator]


def test_without_keys_there_is_the_common_group_and_a_gateway_knows_more_than_this_server() -> None:
    assert cache_groups(None) == {""}
    assert cache_groups(PassedClients(lambda: 0.0)) is None
