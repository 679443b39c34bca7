"""Sequences that share a beginning compute it once, after a death of the workers too."""

import itertools

import pytest
from scheduler_simulation import Service, small_service

SHARED = [0, 1, 2, 0, 1] * 8  # ten pages, and more than a step's tokens
OWN = 3  # tokens of each prompt behind them, which no other has


def _run(server: Service, until_tokens: int) -> int:
    """Run until each sequence has so many tokens. Returns the positions that were computed for it."""
    computed = 0
    while min(len(request.received) for request in server.requests.values()) < until_tokens:
        plan = server.schedule()
        computed += 0 if plan is None else sum(max(1, len(seq.tokens)) for seq in plan.seqs)
        if plan is None or not server.ahead or len(server.sent) == 2:
            server.receive()
    return computed


@pytest.mark.parametrize("num_snapshots", [0, 32])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("sequences", [2, 5, 8])
def test_a_shared_beginning_is_computed_once_after_a_death(sequences: int, ahead: bool, num_snapshots: int) -> None:
    sizes = {"num_pages": 200, "max_slots": 8, "max_step_tokens": 16, "max_logit_rows": 16}
    server = small_service(ahead, num_snapshots=num_snapshots, **sizes)
    tails = itertools.islice(itertools.product(range(3), repeat=OWN), sequences)
    requests = [server.add([*SHARED, *tail], 20) for tail in tails]
    _run(server, until_tokens=2)
    server.restart_workers()
    known = sum(len(request.received) + OWN for request in requests)
    decoded = sum(len(request.received) for request in requests)
    computed = _run(server, until_tokens=6)
    sampled = sum(len(request.received) for request in requests) - decoded
    in_flight = sum(max(1, len(seq.tokens)) for plan in server.sent for seq in getattr(plan, "seqs", []))
    # Each sample but a sequence's first one is of a position of its own.
    assert computed - in_flight == len(SHARED) + known + sampled - sequences
    server.drain()
    assert all(request.is_answered for request in requests)
