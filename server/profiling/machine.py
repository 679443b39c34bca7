"""Rates of a server, from two answers of `GET /machine`."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from numaserve.server.engine.overview import Overview
from numaserve.server.profiling.figures import RankFigures, between
from numaserve.workers.interface.errors import OperatorError


class Machine(msgspec.Struct, frozen=True):
    """The answer."""

    version: str
    model: str
    now: Overview
    costs: list[RankFigures]  # by rank; empty while a step holds them up, or where there are no workers


@dataclass(frozen=True)
class Rates:
    """What happened in `seconds`."""

    seconds: float
    output_tokens_s: float
    prompt_tokens_s: float
    steps_s: float
    ranks: Sequence[RankFigures]  # what their steps have cost meanwhile; empty where that is not known


def rates_between(before: Machine, after: Machine, seconds: float) -> Rates:
    """The rates. A server that was started again in between has none: they are 0."""
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
