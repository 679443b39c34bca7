"""The cache groups of API keys: whose requests find each other's cached prefixes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from model_bodies import CLASSIFYING, GENERATING, JUDGING, POOLING, SPARSE
from numaserve.server.app.middleware.key_limits import FREE_PATHS
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.judge import Judge
from numaserve.server.generation.purpose import Classifies, Embeds, Generates
from numaserve.server.generation.sparse import SparseOutput
from numaserve.server.http.auth.key_file import ApiKey
from numaserve.server.http.auth.keys import ApiKeys
from numaserve.server.http.auth.passed_clients import PASSED_HEADER, PassedClients, passed_header
from numaserve.server.scheduler.cache.scope import COMMON_SCOPE, CacheScope
from numaserve.server.scheduler.client import Client
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import EMBEDDING_SIZE, FakeEngine, make_context
from tests.support.app_routes import ROUTES

KEYS = (ApiKey("alone"), ApiKey("other"), ApiKey("one", cache_group="team"), ApiKey("two", cache_group="team"))
_ADAPTERS = {"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter", "/unload_lora_adapter"}
_RUN_NO_MODEL = {"/v1/responses/input_tokens", "/api/pull"} | _ADAPTERS


def header(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"x-api-key", key.encode())]


def groups(keys: ApiKeys) -> dict[str, str]:
    """The group of each key."""
    return {each.key: keys.client(header(each.key)).cache_group for each in KEYS}


def behind_a_gateway(keys: ApiKeys, *, one_group: bool = False) -> dict[str, str]:
    """The group of each key, as the server of a model sees it."""
    behind, found = PassedClients(lambda: 0.0, one_group=one_group), {}
    for each in KEYS:
        headers = header(each.key)
        passed = passed_header(keys.client(headers), keys.owner(headers), keys.account(headers))
        found[each.key] = behind.client([(PASSED_HEADER, passed)]).cache_group
    return found


def test_a_key_is_a_group_of_its_own_unless_its_line_names_one() -> None:
    found = groups(ApiKeys(KEYS))
    assert found["one"] == found["two"]
    assert len({found["alone"], found["other"], found["one"], ""}) == 4
    assert not any(each.key in found[each.key] for each in KEYS)


def test_with_one_group_only_named_groups_are_apart() -> None:
    found = groups(ApiKeys(KEYS, one_group=True))
    assert (found["alone"], found["other"]) == ("", "")
    assert found["one"] == found["two"] != ""


def test_a_group_is_the_same_before_and_behind_a_gateway() -> None:
    before = ApiKeys(KEYS)
    assert behind_a_gateway(before) == groups(before)
    assert behind_a_gateway(before, one_group=True) == groups(ApiKeys(KEYS, one_group=True))


def test_without_keys_all_are_in_the_common_group_behind_a_gateway_too() -> None:
    passed = passed_header(Client("192.0.2.1"))
    assert PassedClients(lambda: 0.0).client([(PASSED_HEADER, passed)]).cache_group == ""


def test_no_name_of_a_group_leads_into_the_group_of_a_key() -> None:
    alone = ApiKeys(KEYS).client(header("alone"))
    named = ApiKeys([ApiKey("thief", cache_group=alone.name)]).client(header("thief"))
    assert named.cache_group != alone.cache_group


@pytest.mark.parametrize("one_group", [False, True])
def test_a_key_that_was_taken_away_meanwhile_shares_with_nobody(one_group: bool) -> None:
    keys = ApiKeys(KEYS, one_group=one_group)
    team = keys.client(header("one")).cache_group
    keys.replace([ApiKey("two", cache_group="team")])
    assert keys.client(header("one")).cache_group not in {"", team}


def test_groups_follow_the_key_file() -> None:
    keys = ApiKeys(KEYS)
    keys.replace([ApiKey("alone", cache_group="team"), ApiKey("one", cache_group="team")])
    assert keys.client(header("alone")).cache_group == keys.client(header("one")).cache_group
    assert keys.count_groups() == {"team": 2}


def servers() -> Iterator[tuple[FakeEngine, ApiContext, Mapping[str, dict[str, Any]]]]:
    """A server of each kind, and what is asked of it."""
    for bodies, options in (
        (GENERATING, {}),
        (POOLING, {"purpose": Embeds(EMBEDDING_SIZE)}),
        (SPARSE, {"purpose": Embeds(sparse=SparseOutput(1))}),
        (CLASSIFYING, {"purpose": Classifies(("a", "b"), "none")}),
        (JUDGING, {"purpose": Generates(Judge(ord("n"), ord("y"))), "context_length": 600}),
    ):
        engine = FakeEngine()
        yield engine, make_context(engine, keys=KEYS, **options), bodies  # type: ignore[arg-type]


def scopes(
    http: TestClient, engine: FakeEngine, path: str, body: dict[str, Any], keys: Sequence[str]
) -> list[CacheScope]:
    """The scope of what each key asks at a route, which is one for all of its sequences."""
    found = []
    for key in keys:
        engine.admitted.clear()
        http.post(path, json=body, headers={"X-Api-Key": key})
        [scope] = {request.scope for request in engine.admitted}
        found.append(scope)
    return found


def test_at_every_route_that_runs_the_model_a_key_finds_the_prefixes_of_its_group_alone() -> None:
    expected = [CacheScope(group) for group in groups(ApiKeys(KEYS)).values()]
    assert len(set(expected)) == 3
    asked = set[str]()
    for engine, context, bodies in servers():
        with TestClient(app_over(context), raise_server_exceptions=False) as http:
            for path, body in bodies.items():
                assert scopes(http, engine, path, body, [each.key for each in KEYS]) == expected, path
                asked.add(path)
    assert asked == {path for method, path in ROUTES if method == "POST"} - FREE_PATHS - _RUN_NO_MODEL


def test_a_grammar_is_compiled_for_the_requests_of_one_group_and_salt() -> None:
    engine = FakeEngine()
    with TestClient(app_over(make_context(engine, keys=KEYS))) as http:
        body = GENERATING["/v1/chat/completions"] | {"n": 1, "response_format": {"type": "json_object"}}
        asked: list[tuple[str, dict[str, str]]] = [(each.key, {}) for each in KEYS]
        asked += [("one", {"cache_salt": "s"}), ("alone", {})]
        for key, more in asked:
            answer = http.post("/v1/chat/completions", json=body | more, headers={"X-Api-Key": key})
            assert answer.status_code == 200, answer.text
    alone, other, one, two, salted, again = (request.matcher for request in engine.admitted)
    assert one is two
    assert again is alone
    assert len({alone, other, one, salted}) == 4


def test_a_salt_divides_a_group_and_joins_none() -> None:
    engine = FakeEngine()
    with TestClient(app_over(make_context(engine, keys=KEYS))) as http:
        body = {"prompt": "hi", "cache_salt": "s"}
        found = scopes(http, engine, "/v1/completions", body, ["alone", "other", "one", "two"])
    assert found[2] == found[3]
    assert len({*found, *(CacheScope(group) for group in groups(ApiKeys(KEYS)).values()), CacheScope(salt="s")}) == 7


def test_without_keys_every_client_is_in_the_common_scope() -> None:
    engine = FakeEngine()
    with TestClient(app_over(make_context(engine))) as http:
        assert http.get("/server_info").json()["prefix_sharing"] == "everyone"
        http.post("/v1/completions", json={"prompt": "hi"})
    assert [request.scope for request in engine.admitted] == [COMMON_SCOPE]


def test_server_info_says_who_shares_cached_prefixes() -> None:
    with TestClient(app_over(make_context(FakeEngine(), keys=KEYS))) as http:
        info = http.get("/server_info", headers={"X-Api-Key": "one"}).json()
    assert info["prefix_sharing"] == "each_key"
    assert ApiKeys(KEYS, one_group=True).sharing == "keys_without_group"
    assert PassedClients(lambda: 0.0, one_group=True).sharing == "keys_without_group"
