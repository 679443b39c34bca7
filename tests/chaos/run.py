"""A run: what is asked without faults, the same with faults, and how the answers differ."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.report import Report
from tests.chaos.served import oracle, under_chaos
from tests.chaos.site import Load, Site, answers_of
from tests.chaos.traffic import Request, draw_embeddings, draw_requests
from tests.support.chat_model import DRAFT, FAMILIES, MODEL, write_model

_EMBEDDING = {"task": "embed"}
_EMBEDDING_CLIENTS = 4
_WAYS = 3  # of speculation, see `_guessing`
# In which the tokens of as many running requests are computed again.
_STEPS_A_CLIENT, _EMBEDDING_STEPS = 2.5, 40


@dataclass(frozen=True)
class Options:
    """Of a run: there is a fault in every state, and then more for `seconds` in all, or until `kills` deaths of the
    first server, if that is not 0."""

    seed: int
    seconds: float = 30.0
    kills: int = 0
    clients: int = 32
    requests: int = 120  # different ones, which are asked again and again
    embeddings: int = 40  # the same of a second server; 0: there is none
    step_deadline_s: float = 5.0  # less makes workers of a busy machine hang that do not
    fork: bool = False  # workers, which is quicker than to execute them
    family: str = ""  # of the model; empty: the seed draws it


def run(options: Options, show: Callable[[int, Report], None] = lambda *_: None) -> Report:
    """Make the model, ask it all, and do it again under chaos. `show`: see `Site`, of the first server."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        family = options.family or list(FAMILIES)[options.seed // _WAYS % len(FAMILIES)]
        model = write_model(folder, MODEL, family)
        loads = _loads(options, model)
        with ExitStack() as servers:
            sites = []
            for index, load in enumerate(loads):
                place = folder / str(index)
                place.mkdir()
                more = _EMBEDDING if index else _guessing(options.seed, folder)
                server = servers.enter_context(
                    under_chaos(model, place, options.step_deadline_s, fork=options.fork, **more)
                )
                sites.append(Site(server, load, pooled=True) if index else Site(server, load, pooled=False, show=show))
            return asyncio.run(_run(options, sites))


def _guessing(seed: int, folder: Path) -> dict[str, object]:
    """The options by which the server guesses, which is not to show: nothing, what it can by itself, or also with a
    draft model."""
    ways: list[dict[str, object]] = [{}, {"speculative": "auto"}, {"draft-model": write_model(folder, DRAFT)}]
    return ways[seed % _WAYS]


def _loads(options: Options, model: Path) -> list[Load]:
    """What is asked, and what is answered by servers as they are."""
    seed, clients = options.seed, options.clients
    requests = draw_requests(seed, options.requests)
    loads = [Load(requests, _answers(model, requests, clients), clients, round(_STEPS_A_CLIENT * clients), seed)]
    if options.embeddings:
        requests, clients = draw_embeddings(seed, options.embeddings), _EMBEDDING_CLIENTS
        expected = _answers(model, requests, clients, **_EMBEDDING)
        loads.append(Load(requests, expected, clients, _EMBEDDING_STEPS, seed))
    return loads


def _answers(model: Path, requests: Sequence[Request], clients: int, **more: object) -> list[Any]:
    with oracle(model, **more) as server:
        return asyncio.run(answers_of(server.url, requests, clients))


async def _run(options: Options, sites: list[Site]) -> Report:
    begun = time.monotonic()
    first_is_over = False

    def is_enough(deaths: int) -> bool:
        if options.kills:
            return deaths >= options.kills
        return time.monotonic() - begun > options.seconds

    async def first() -> Report:
        nonlocal first_is_over
        try:
            return await sites[0].run(is_enough)
        finally:
            first_is_over = True

    reports = await asyncio.gather(first(), *(site.run(lambda _: first_is_over) for site in sites[1:]))
    return Report.of(options.seed, reports)
