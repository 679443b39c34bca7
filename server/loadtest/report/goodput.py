"""The service level objectives of goodput: ``ttft:500 tpot:50``, in milliseconds."""

from collections.abc import Mapping, Sequence

from numaserve.server.loadtest.workload.requests import Outcome
from numaserve.workers.interface.errors import OperatorError

OBJECTIVES = ("ttft", "tpot", "e2el")


def parse_goodput(words: Sequence[str]) -> dict[str, float]:
    """Return the limit of each objective, in milliseconds.

    Raises `OperatorError` for an unknown or repeated objective, and for a limit that is no positive number.
    """
    limits: dict[str, float] = {}
    for word in " ".join(words).replace(",", " ").split():
        name, _, limit = word.partition(":")
        name = "e2el" if name == "e2e" else name
        if name not in OBJECTIVES or not _is_positive(limit):
            raise OperatorError(
                f"--goodput {word} is not valid: use NAME:MILLISECONDS with one of the names {', '.join(OBJECTIVES)}"
            )
        if name in limits:
            raise OperatorError(f"--goodput sets {name} twice: remove one of the two")
        limits[name] = float(limit)
    return limits


def is_good(outcome: Outcome, limits: Mapping[str, float]) -> bool:
    """Return whether a request met every limit. An answer of a single token meets any TPOT."""
    seen = {"ttft": outcome.ttft_s, "tpot": outcome.tpot_s or 0.0, "e2el": outcome.e2e_s}
    return outcome.error is None and all(seen[name] * 1e3 <= limit for name, limit in limits.items())


def _is_positive(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False
