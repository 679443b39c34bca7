"""Results of checks, as the tables and the JSON of ``numaserve doctor`` show them."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "advice", "problem", "unknown"]


@dataclass(frozen=True)
class Seen:
    """The setting that a check found, and the change that would improve it."""

    found: str
    change: str = ""
    status: Status = "ok"


@dataclass(frozen=True)
class Finding:
    """A row of the report."""

    check: str
    found: str
    wanted: str
    change: str  # empty if nothing is to be changed
    status: Status


def ok(found: str) -> Seen:
    """Return a setting that can stay."""
    return Seen(found)


def advice(found: str, change: str) -> Seen:
    """Return a setting that may cost speed or memory."""
    return Seen(found, change, "advice")


def problem(found: str, change: str) -> Seen:
    """Return a setting that makes serving fail, or much slower than the host could be."""
    return Seen(found, change, "problem")


def finding(check: str, wanted: str, seen: Seen | None) -> Finding:
    """Return the row of a check. None stands for a setting that could not be read, which is not `ok`."""
    if seen is None:
        return Finding(check, "not readable", wanted, "", "unknown")
    return Finding(check, seen.found, wanted, seen.change, seen.status)
