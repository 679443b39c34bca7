"""The shortest run of `make chaos`: one fault in every state."""

import pytest

from tests.chaos.run import Options, run


@pytest.mark.slow  # `.ci/run` runs `make chaos` after the tests, which has a fault in every state too
@pytest.mark.parametrize(("clients", "fork"), [(8, True), (12, False)], ids=["forked", "executed"])
def test_whatever_happens_to_the_workers_every_request_is_answered_as_if_nothing_had(clients: int, fork: bool) -> None:
    # With this seed nothing hangs in the first round: a deadline that is long does not cost anything.
    report = run(
        Options(seed=32, seconds=0, clients=clients, requests=30, embeddings=0, step_deadline_s=60.0, fork=fork)
    )
    told = "\n".join(report.lines())
    assert report.is_good, told
    (part,) = report.parts
    assert part.before is not None and part.after is not None, told  # what it holds was compared
