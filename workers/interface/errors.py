"""The error type that reaches an operator without a traceback, and suggestions for its messages."""

import difflib
from collections.abc import Iterable


class OperatorError(Exception):
    """A problem that the operator can fix: a missing file, too little memory, an impossible option.

    The message is one line that says what is wrong and what to change. The command prints it without a traceback and
    ends with exit status 2.
    """


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return at most three of `known` that are spelt most like `name`, the most similar first; none if no name is
    similar.

    A message that lists all of twenty names would hide the intended one.
    """
    return difflib.get_close_matches(name, known, n=3, cutoff=0.6)
