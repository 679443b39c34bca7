"""The one error type that reaches an operator without a traceback, and what its messages suggest."""

import difflib
from collections.abc import Iterable


class OperatorError(Exception):
    """Something the operator can mend: a missing file, too little memory, an impossible option.

    The message is one line that says what is wrong and what to change. The command prints it without a traceback and
    ends with exit status 2.
    """


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return at most three of `known` that are spelt most like `name`, the likest first; none where none is alike.

    A message that lists all of twenty names hides the one that was meant.
    """
    return difflib.get_close_matches(name, known, n=3, cutoff=0.6)
