"""A cache that owners share by bytes."""

import random
import tracemalloc
from collections import Counter

from numaserve.server.common.fair_lru import ENTRY_BYTES, FairLru


def test_the_least_used_entry_of_an_owner_goes_first() -> None:
    kept = FairLru[str, str](3 * (100 + ENTRY_BYTES))
    for key in "abc":
        assert kept.put(b"one", key, key.upper(), 100)
    assert kept.get("a") == "A"
    assert kept.put(b"one", "d", "D", 100)
    assert [kept.get(key) for key in "abcd"] == ["A", None, "C", "D"]
    assert len(kept) == 3


def test_the_owner_that_holds_most_loses_what_has_to_go() -> None:
    kept = FairLru[tuple[int, int], int](10 * (100 + ENTRY_BYTES))
    assert kept.put(b"one", (1, 0), 0, 100)
    assert kept.put(b"two", (2, 0), 0, 100)
    for number in range(50):
        assert kept.put(b"three", (3, number), number, 100)
    assert kept.get((1, 0)) == kept.get((2, 0)) == 0
    assert kept.get((3, 41)) is None
    assert kept.get((3, 42)) == 42
    for number in range(1, 50):
        assert kept.put(b"one", (1, number), number, 100)
    assert kept.get((2, 0)) == 0
    assert sum(kept.get((3, number)) is not None for number in range(50)) >= 4


def test_an_entry_that_would_take_from_who_holds_less_is_not_kept_and_nothing_goes_for_it() -> None:
    kept = FairLru[str, str](1000 + 2 * ENTRY_BYTES)
    assert kept.put(b"one", "a", "A", 500)
    assert kept.put(b"two", "b", "B", 100)
    assert not kept.put(b"two", "c", "C", 800)
    assert not kept.put(b"three", "c", "C", 1000 + 2 * ENTRY_BYTES)
    assert [kept.get(key) for key in "abc"] == ["A", "B", None]


def test_what_is_deleted_is_not_found_and_leaves_its_bytes() -> None:
    kept = FairLru[str, str](100 + ENTRY_BYTES)
    assert not kept.delete("a")
    for _ in range(20):
        assert kept.put(b"one", "a", "A", 100)
        assert not kept.delete("b")
        assert kept.delete("a")
        assert kept.get("a") is None


def test_owners_that_hold_less_than_their_share_lose_nothing_whatever_is_put() -> None:
    chance, sizes = random.Random(1), Counter[bytes]()
    kept = FairLru[int, int](40_000)
    modest = [b"a", b"b"]
    mine: dict[int, int] = {}
    for number in range(2000):
        owner = chance.choice([*modest, b"c", b"d"])
        nbytes = chance.randrange(1, 200 if owner in modest else 12_000)
        if owner in modest and sizes[owner] + nbytes + ENTRY_BYTES > 10_000:
            continue
        accepted = kept.put(owner, number, nbytes, nbytes)
        if owner in modest:
            assert accepted
            sizes[owner] += nbytes + ENTRY_BYTES
            mine[number] = nbytes
    assert all(kept.get(each) == nbytes for each, nbytes in mine.items())


def test_the_memory_of_many_small_entries_is_bounded() -> None:
    kept = FairLru[str, tuple[bytes, bytes]](500_000)
    tracemalloc.start()
    try:
        for number in range(2500):
            assert kept.put(b"%d" % (number % 20), f"an id of a response {number}", (bytes(9), bytes(1)), 10)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 500_000
