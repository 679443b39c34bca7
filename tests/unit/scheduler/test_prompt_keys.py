"""Prompts whose positions have keys of their own: equal tokens that stand for other content."""

import pytest
from numaserve.server.scheduler.cache.kv_events import KVEventLog, PagesStored
from numaserve.server.scheduler.kv_cache import KVCache
from numaserve.server.scheduler.sequence import Sequence
from numaserve.workers.interface.protocol import SamplingParams

from tests.support.plan_limits import plan_limits
from tests.support.sequences import sequence

PAGE, PAGES = 4, 12
TOKENS = [1, 2, 0, 0, 0, 0, 3, 4, 5]
CAT: list[int | bytes] = [1, 2, b"cat", b"cat", b"cat", b"cat", 3, 4, 5]
DOG: list[int | bytes] = [1, 2, b"cat", b"cat", b"cat", b"dog", 3, 4, 5]


@pytest.fixture
def log() -> KVEventLog:
    return KVEventLog("model")


@pytest.fixture
def cache(log: KVEventLog) -> KVCache:
    return KVCache(plan_limits(PAGES, PAGES * PAGE, page_size=PAGE), log)


def keyed(keys: list[int | bytes] | None) -> Sequence:
    seq = sequence("request", TOKENS, SamplingParams(), 1)
    if keys is not None:
        seq.position.set_prompt_keys(keys)
    return seq


def serve(cache: KVCache, keys: list[int | bytes] | None) -> int:
    """Compute the prompt and release it; return the number of positions that were found in the cache."""
    seq = keyed(keys)
    cache.begin_step([])
    assert cache.admit(seq, 0)
    found = seq.position.computed
    seq.position.planned(len(TOKENS) - found, 0, drafter_read=len(TOKENS))
    cache.release(seq)
    return found


def test_content_is_found_again_by_its_key_and_not_by_its_placeholder(cache: KVCache) -> None:
    assert [serve(cache, keys) for keys in (CAT, DOG, None, CAT, DOG, None)] == [0, 4, 0, 8, 8, 8]


def test_events_tell_placeholders_and_digests_tell_content_apart(cache: KVCache, log: KVEventLog) -> None:
    events = []
    for keys in (CAT, DOG, None):
        serve(cache, keys)
        events += log.take()
    assert all(isinstance(each, PagesStored) for each in events)
    cat, dog, text = events
    assert (cat.tokens, dog.tokens, text.tokens) == (TOKENS[:8], TOKENS[4:8], TOKENS[:8])
    assert dog.parent == cat.digests[0]
    assert len({*cat.digests, *dog.digests, *text.digests}) == 5


def test_what_gave_no_numbers_is_hidden_by_its_keys(cache: KVCache) -> None:
    serve(cache, CAT)
    serve(cache, None)
    spoiled = keyed(CAT)
    cache.forget(spoiled)
    assert [serve(cache, keys) for keys in (CAT, None)] == [0, 8]
