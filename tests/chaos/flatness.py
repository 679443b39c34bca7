"""Whether a server holds more the longer it runs."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from statistics import median_low

from tests.chaos.served import Holdings

THIRDS = 3
# A shorter run is over before a heap has met the most that the load wants of it at once.
SETTLED_S = 600.0
# At rest, before the faults and after them. The front end may have started its second process for grammars meanwhile.
_MORE_AT_REST: Mapping[str, float] = {"pages": 0, "active_pages": 0, "worker_files": 0, "front_end_files": 4}
# Under load, from the middle third to the last. A MiB in 10 minutes is some 300 bytes a request, or 20 KiB a death.
_MORE_LATER: Mapping[str, float] = {
    "worker_files": 0,
    "front_end_files": 4,  # connections are among them
    "front_end_mib": 1.0,
    "helper_mib": 1.0,
    "worker_mib": 1.0,
}


def medians_of_thirds(held: Sequence[Holdings]) -> list[Holdings]:
    """Of each thing its medians in the first, the middle and the last third."""
    size = len(held) / THIRDS
    parts = [held[round(third * size) : round((third + 1) * size)] for third in range(THIRDS)]
    return [Holdings(*map(median_low, zip(*map(astuple, part), strict=True))) for part in parts]


def grown(before: Holdings | None, after: Holdings | None, held: Sequence[Holdings], seconds: float) -> list[str]:
    """What a run of so many seconds has left larger than it may, for the report.

    `before` and `after` are at rest, None where the server did not come to that; `held` is under load, in order of
    time. The first third is what a server grows to when it is first used, and is not looked at.
    """
    found = _larger("at rest", before, after, _MORE_AT_REST) if before is not None and after is not None else []
    if seconds >= SETTLED_S and len(held) >= THIRDS:
        _, middle, last = medians_of_thirds(held)
        found += _larger("under load", middle, last, _MORE_LATER)
    return found


def _larger(when: str, first: Holdings, second: Holdings, more: Mapping[str, float]) -> list[str]:
    pairs = ((name, getattr(first, name), getattr(second, name), most) for name, most in more.items())
    return [
        f"{name.replace('_', ' ')} {when}: {one:g} -> {other:g}"
        for name, one, other, most in pairs
        if other - one > most
    ]
