"""Draft tokens of what a constraint forces."""

import pytest
from numaserve.server.speculation.constraint import KnownConstraint
from numaserve.server.speculation.drafters.grammar import GrammarDrafter


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
    assert GrammarDrafter(KnownConstraint(forced=(begin, forced))).draft(tokens, 2) == drafted
