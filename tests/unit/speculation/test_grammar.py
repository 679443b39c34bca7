"""Draft tokens of what a constraint forces."""

import pytest
from numaserve.server.scheduler.sequence import Sequence
from numaserve.server.speculation.drafters.grammar import GrammarDrafter
from numaserve.workers.interface.protocol import SamplingParams


@pytest.mark.parametrize(
    ("begin", "forced", "tokens", "drafted"),
    [
        (3, (7, 8, 9), [1, 2, 3], [7, 8]),
        (3, (7, 8, 9), [1, 2, 3, 7], [8, 9]),
        (3, (7, 8, 9), [1, 2, 3, 6], []),  # the text was cut in another way
        (3, (7, 8, 9), [1, 2, 3, 7, 8, 9], []),
        (3, (7, 8, 9), [1, 2, 3, 7, 8, 9, 7], []),
        (3, (7, 8, 9), [1, 2], []),  # told of a sequence that is further
        (0, (), [1, 2], []),
    ],
)
def test_what_is_forced_is_drafted_from_where_the_sequence_is(
    begin: int, forced: tuple[int, ...], tokens: list[int], drafted: list[int]
) -> None:
    seq = Sequence("a", [1], SamplingParams(masked=True), 9)
    seq.forced = begin, forced
    assert GrammarDrafter(seq).draft(tokens, 2) == drafted
