"""The places of image features."""

from numaserve.server.scheduler.cache.scope import COMMON_SCOPE, CacheScope
from numaserve.server.scheduler.feature_pool import FeaturePool

CAT, DOG, BIRD = ((COMMON_SCOPE, name) for name in (b"cat", b"dog", b"bird"))


def test_features_are_found_in_their_scope_alone() -> None:
    pool = FeaturePool(2)
    place = pool.take(CAT)
    assert pool.find(CAT) == place
    assert pool.find((CacheScope("team"), b"cat")) is None


def test_the_least_recently_used_features_lose_their_place() -> None:
    pool = FeaturePool(2)
    cat, dog = pool.take(CAT), pool.take(DOG)
    pool.unlock([dog, cat])
    pool.unlock([pool.find(DOG) or 0])
    assert pool.take(BIRD) == cat
    assert CAT not in pool
    assert pool.find(DOG) == dog


def test_a_place_is_locked_until_the_last_plan_that_names_it_is_answered() -> None:
    pool = FeaturePool(1)
    place = pool.take(CAT)
    assert pool.find(CAT) == place
    pool.unlock([place])
    assert (pool.num_available, pool.is_locked(CAT)) == (0, True)
    pool.unlock([place])
    assert (pool.num_available, pool.is_locked(CAT)) == (1, False)
    assert pool.take(DOG) == place


def test_new_workers_have_no_features() -> None:
    pool = FeaturePool(2)
    pool.take(CAT)
    pool.unlock([pool.take(DOG)])
    pool.flush()
    assert pool.num_available == 2
    assert CAT not in pool
    assert DOG not in pool


def test_features_that_may_not_be_numbers_are_not_found_and_their_place_is_free_after_the_plans_that_read_it() -> None:
    pool = FeaturePool(1)
    place = pool.take(CAT)
    pool.forget(CAT)
    assert pool.find(CAT) is None
    assert pool.num_available == 0
    pool.unlock([place])
    assert pool.take(CAT) == place
    pool.unlock([place])
    pool.forget(CAT)
    assert pool.take(DOG) == place
