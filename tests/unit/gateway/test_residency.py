from typing import Any

import pytest
from numaserve.server.gateway.models.residency import MIN_STAY_S, Claim, Residency

GIB = 1 << 30


def claim(*cores: int, gib: int = 1, node: int = 0, **more: Any) -> Claim:
    return Claim(frozenset(cores), {node: gib * GIB}, **more)


def models(max_loaded: int | None = None, gib: int = 10, **claims: Claim) -> Residency:
    return Residency(claims, {0: gib * GIB, 1: gib * GIB}, max_loaded)


def loaded(residency: Residency, name: str, now: float) -> None:
    residency.want(name)
    assert ("start", name) in residency.decide(now)
    residency.ready(name, now)


def test_models_on_cores_of_their_own_are_loaded_together() -> None:
    residency = models(a=claim(0), b=claim(1))
    for name in "ab":
        residency.want(name)
    assert residency.decide(0.0) == [("start", "a"), ("start", "b")]
    assert residency.decide(0.0) == []
    residency.ready("b", 1.0)
    assert (residency.state("a"), residency.state("b")) == ("loading", "ready")


def test_who_has_the_cores_of_a_wanted_model_goes_first() -> None:
    residency = models(a=claim(0, 1), b=claim(1, 2))
    loaded(residency, "a", 0.0)
    residency.want("b")
    assert residency.decide(1.0) == [("drain", "a"), ("end", "a")]
    assert residency.decide(1.0) == []
    residency.ended("a", again=False)
    assert residency.state("a") == "unloaded"
    assert residency.decide(2.0) == [("start", "b")]


def test_the_least_recently_used_one_goes_where_only_so_many_may_be_loaded() -> None:
    residency = models(2, a=claim(0), b=claim(1), c=claim(2))
    loaded(residency, "a", 0.0)
    loaded(residency, "b", 1.0)
    residency.enter("a", 2.0)
    residency.leave("a", 3.0)
    residency.want("c")
    assert residency.decide(4.0) == [("drain", "b"), ("end", "b")]


def test_memory_is_made_free_on_the_node_that_lacks_it() -> None:
    residency = models(gib=4, a=claim(0, gib=3), b=claim(1, gib=3, node=1), c=claim(2, gib=2))
    loaded(residency, "b", 0.0)
    loaded(residency, "a", 1.0)
    residency.want("c")
    assert residency.decide(2.0) == [("drain", "a"), ("end", "a")]


def test_a_pinned_model_stays() -> None:
    residency = models(2, a=claim(0, pinned=True, idle_unload_s=1.0), b=claim(1), c=claim(2))
    loaded(residency, "a", 0.0)
    loaded(residency, "b", 1.0)
    assert residency.decide(100.0) == []
    residency.want("c")
    assert residency.decide(100.0) == [("drain", "b"), ("end", "b")]


@pytest.mark.parametrize("blocked", ["cores", "memory", "number"])
def test_who_cannot_be_loaded_beside_a_pinned_model_holds_nobody_up(blocked: str) -> None:
    residency = models(
        2,
        gib=10 if blocked == "memory" else 100,
        p=claim(0, gib=8, pinned=True),
        q=claim(0 if blocked == "cores" else 1, gib=4),
        r=claim(2, node=1, pinned=blocked == "number"),
    )
    loaded(residency, "p", 0.0)
    loaded(residency, "r", 0.0)
    residency.want("q")
    assert residency.decide(50.0) == []
    assert residency.next_look(50.0) is None  # otherwise the gateway would look again endlessly
    residency.unload("r")
    assert residency.decide(51.0) == [("end", "r")]
    residency.ended("r", again=False)
    residency.want("r")
    assert ("start", "r" if blocked != "number" else "q") in residency.decide(52.0)


def test_running_requests_are_waited_for_and_a_model_has_some_time_for_them() -> None:
    residency = models(a=claim(0), b=claim(0))
    loaded(residency, "a", 0.0)
    residency.enter("a", 0.0)
    residency.want("b")
    assert residency.decide(1.0) == []
    assert residency.next_look(1.0) == MIN_STAY_S - 1.0
    assert residency.decide(MIN_STAY_S) == [("drain", "a")]
    assert residency.next_look(MIN_STAY_S) is None
    residency.want("a")  # a request that comes too late for this life
    assert residency.decide(MIN_STAY_S) == []
    residency.leave("a", MIN_STAY_S + 1)
    assert residency.decide(MIN_STAY_S + 1) == [("end", "a")]
    residency.ended("a", again=False)
    assert residency.decide(MIN_STAY_S + 1) == [("start", "b")]
    residency.ready("b", MIN_STAY_S + 2)
    assert residency.decide(MIN_STAY_S + 2) == [("drain", "b"), ("end", "b")]


def test_nobody_takes_the_place_that_another_waits_for() -> None:
    residency = models(a=claim(0, 1), b=claim(1, 2), c=claim(2))
    loaded(residency, "a", 0.0)
    residency.enter("a", 0.0)
    residency.want("b")
    residency.want("c")
    assert residency.decide(1.0) == []  # c would fit beside a, and hold b up
    residency.forget("b")
    assert residency.decide(1.0) == [("start", "c")]


def test_an_idle_model_is_unloaded() -> None:
    residency = models(a=claim(0, idle_unload_s=60.0))
    loaded(residency, "a", 0.0)
    residency.enter("a", 50.0)
    assert residency.decide(1000.0) == []
    residency.leave("a", 1000.0)
    assert residency.next_look(1000.0) == 60.0
    assert residency.decide(1059.0) == []
    assert residency.decide(1060.0) == [("drain", "a"), ("end", "a")]


@pytest.mark.parametrize("was_ready", [False, True])
def test_a_process_that_ends_is_started_again_or_has_failed(was_ready: bool) -> None:
    residency = models(a=claim(0))
    residency.want("a")
    residency.decide(0.0)
    if was_ready:
        residency.ready("a", 1.0)
    residency.ended("a", again=True)
    assert residency.state("a") == "loading"
    assert residency.decide(1.0) == []  # who started it starts it again
    residency.ended("a", again=False)
    assert residency.state("a") == "failed"
    residency.want("a")
    assert residency.decide(2.0) == []
    residency.want("a", ordered=True)
    assert residency.decide(2.0) == [("start", "a")]


def test_an_order_holds_though_nobody_waits_any_more_until_another_one() -> None:
    residency = models(a=claim(0), b=claim(0))
    loaded(residency, "a", 0.0)
    residency.enter("a", 0.0)
    residency.want("b")
    residency.want("b", ordered=True)
    residency.forget("b")
    assert residency.is_coming("b")
    residency.unload("b")
    assert not residency.is_coming("b")
    residency.leave("a", 1.0)
    assert residency.decide(1.0) == []


@pytest.mark.parametrize("state", ["loading", "ready"])
def test_an_order_unloads_a_model_in_any_state(state: str) -> None:
    residency = models(a=claim(0, pinned=True))
    residency.want("a")
    residency.decide(0.0)
    if state == "ready":
        residency.ready("a", 1.0)
    residency.unload("a")
    assert residency.decide(2.0) == [("end", "a")]
    residency.ready("a", 2.0)  # said too late
    assert residency.state("a") == "draining"
    residency.ended("a", again=True)
    assert residency.state("a") == "unloaded"
    residency.unload("a")
    assert residency.decide(3.0) == []
