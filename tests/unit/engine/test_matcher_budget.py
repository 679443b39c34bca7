"""A client's constraints may take so much processor time next to the workers, and no more."""

from numaserve.server.engine.masks.matcher_budget import MatcherBudget


def spend(budget: MatcherBudget, client: str, *, each: float, tokens: int) -> bool:
    return all(budget.allows(client, each, 1) for _ in range(tokens))


def test_usual_masks_are_never_too_much() -> None:
    assert spend(MatcherBudget(lambda: 0.0), "a", each=2e-4, tokens=10_000)


def test_one_slow_mask_is_allowed_and_many_are_not() -> None:
    budget = MatcherBudget(lambda: 0.0)
    assert budget.allows("a", 0.02, 1)
    assert not spend(budget, "a", each=0.02, tokens=3)
    assert budget.allows("b", 0.02, 1)


def test_cheap_work_of_whoever_has_spent_too_much_stays() -> None:
    budget = MatcherBudget(lambda: 0.0)
    assert not budget.allows("a", 1.0, 1)
    assert budget.allows("a", 5e-4, 1)
    assert not budget.allows("a", 3e-3, 1)


def test_what_was_spent_is_forgiven_with_time() -> None:
    now = [0.0]
    budget = MatcherBudget(lambda: now[0])
    assert not budget.allows("a", 1.0, 1)
    now[0] = 20.0
    assert budget.allows("a", 0.02, 1)


def test_memory_of_many_clients_is_bounded() -> None:
    budget = MatcherBudget(lambda: 0.0)
    for client in range(3000):
        budget.allows(f"{client}", 1.0, 1)
    assert len(budget._left) == 1024
