"""Rates of a server, from two answers of `GET /machine`."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from numaserve.server.engine.overview import Overview
from numaserve.server.profiling.figures import RankFigures, between
from numaserve.workers.interface.errors import OperatorError


class Machine(msgspec.Struct, frozen=True):
    """The answer of `GET /machine`."""

    version: str
    model: str
    now: Overview
    costs: list[RankFigures]  # by rank; empty while a step delays them, or without workers


@dataclass(frozen=True)
class Rates:
    """The rates of a server in a period of `seconds`."""

    seconds: float
    output_tokens_s: float
    prompt_tokens_s: float
    steps_s: float
    ranks: Sequence[RankFigures]  # the cost of their steps in the period; empty if it is unknown


def rates_between(before: Machine, after: Machine, seconds: float) -> Rates:
    """Return the rates between two answers. They are 0 for a server that was restarted in between."""
    then, now = before.now, after.now
    return Rates(
        seconds,
        max(0, now.generation_tokens - then.generation_tokens) / seconds,
        max(0, now.prompt_tokens - then.prompt_tokens) / seconds,
        max(0, now.steps - then.steps) / seconds,
        _grown(before.costs, after.costs),
    )


def _grown(before: Sequence[RankFigures], after: Sequence[RankFigures]) -> list[RankFigures]:
    try:
        return between(before, after)
    except OperatorError:  # other workers by now, or none
        return []
