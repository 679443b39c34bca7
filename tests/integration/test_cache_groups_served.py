"""Keys of the serve command, and what each learns by `usage` of what others have asked."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from numaserve.workers.interface.protocol import PAGE_SIZE
from served import Serve, announced_url

from tests.support.kv_reader import Subscriber

PROMPT = list(range(10, 10 + 3 * PAGE_SIZE))
HIT = 2 * PAGE_SIZE  # the last page of a prompt is computed for its logits


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("alice\nbob\ncarol cache-group=team\ndave cache-group=team\n")
    path.chmod(0o600)
    return path


class Caller:
    """Requests to one server with any of its keys."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=60)

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def cached(self, key: str, prompt: Sequence[int] = PROMPT, **fields: object) -> int:
        body = {"model": "tiny-model", "prompt": list(prompt), "max_tokens": 1, **fields}
        answer = self._http.post("/v1/completions", json=body, headers={"X-Api-Key": key})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    def info(self) -> dict[str, Any]:
        answer: dict[str, Any] = self._http.get("/server_info", headers={"X-Api-Key": "alice"}).json()
        return answer


def test_a_second_key_learns_nothing_of_a_prompt_unless_it_is_of_the_group(serve: Serve, keys: Path) -> None:
    with Caller(announced_url(serve(f"api_key_file={keys}"))) as caller:
        assert caller.cached("alice") == 0
        assert caller.cached("alice") == HIT
        assert caller.cached("bob") == 0
        assert caller.cached("carol") == 0
        assert caller.cached("dave") == HIT
        assert caller.cached("dave", cache_salt="mine") == 0
        assert caller.cached("carol", cache_salt="mine") == HIT
        assert caller.info()["prefix_sharing"] == "each_key"


def conversations(caller: Caller, names: Sequence[str], begin: int) -> list[int]:
    """Tokens found by a tenant that asks twelve questions after one text, with its keys in turn."""
    text = [begin + index % 50 for index in range(4 * PAGE_SIZE)]
    return [caller.cached(names[turn % len(names)], [*text, *[begin + 60 + turn] * 5]) for turn in range(12)]


def test_several_keys_of_one_group_hit_as_one_key_does_and_keys_apart_do_not(serve: Serve, keys: Path) -> None:
    with Caller(announced_url(serve(f"api_key_file={keys}"))) as caller:
        one_key = conversations(caller, ["alice"], 100)
        one_group = conversations(caller, ["carol", "dave"], 200)
        apart = conversations(caller, ["alice", "bob"], 300)
    assert one_key == [0, *[4 * PAGE_SIZE] * 11]
    assert one_group == one_key
    assert apart == [0, 0, *[4 * PAGE_SIZE] * 10]


def told(prompt: Sequence[int]) -> set[tuple[tuple[int, ...], ...]]:
    """The prefixes of a prompt's pages, as a reader of events knows them."""
    pages = [tuple(prompt[begin : begin + PAGE_SIZE]) for begin in range(0, len(prompt), PAGE_SIZE)]
    return {tuple(pages[:count]) for count in range(1, len(pages) + 1)}


def test_with_kv_events_keys_share_what_routers_read_of_and_named_groups_are_in_no_event(
    serve: Serve, keys: Path, log: Path
) -> None:
    last = [*range(400, 400 + PAGE_SIZE)]
    with tempfile.TemporaryDirectory(prefix="ns") as folder:  # tmp_path may be too long for a socket
        addresses = f"ipc://{folder}/events", f"ipc://{folder}/again"
        served = serve(
            f"api_key_file={keys}", *map("=".join, zip(("kv_events", "kv_events_replay"), addresses, strict=True))
        )
        subscriber = Subscriber(*addresses, topic="kv@")
        try:
            with Caller(announced_url(served)) as caller:
                assert caller.cached("carol", range(300, 300 + 2 * PAGE_SIZE)) == 0
                assert caller.cached("dave", range(300, 300 + 2 * PAGE_SIZE)) == PAGE_SIZE
                assert caller.cached("alice") == 0
                assert caller.cached("bob") == HIT
                assert caller.cached("bob", last) == 0
                assert caller.info()["prefix_sharing"] == "keys_without_group"
            while not told(last) <= subscriber.index.prefixes():
                subscriber.catch_up()
            assert subscriber.index.prefixes() == told(PROMPT) | told(last)
        finally:
            subscriber.close()
    assert "API keys without cache-group= (2 of 4) share cached prefixes" in log.read_text()
