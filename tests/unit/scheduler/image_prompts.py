"""Prompts with pictures for the simulated workers, and servers that know what steps and runs of the tower take."""

from collections.abc import Iterator, Sequence

from numaserve.server.scheduler.cache.kv_events import KVEventLog
from numaserve.server.scheduler.client import Client
from numaserve.workers.interface.protocol import StepPlan
from scheduler_simulation import RUN_NS, Request, Service, step_ns

from tests.support.plan_limits import plan_limits
from tests.support.scheduler_integrity import check_integrity
from tests.support.sequences import planned

PAGE, ROWS = 4, 6
CAT, DOG, BIRD = range(3)


def service(
    tiles: int = 4,
    *,
    ahead: bool = False,
    log: KVEventLog | None = None,
    parts: Sequence[float] = (1.0,),
    **limits: object,
) -> Service:
    defaults: dict[str, object] = {
        "num_pages": 600,
        "context_length": 1000,
        "max_slots": 8,
        "max_step_tokens": 64,
        "max_logit_rows": 64,
        "page_size": PAGE,
        "rows_per_tile": ROWS,
    }
    config = plan_limits(**{**defaults, **limits}, feature_tiles=tiles)  # type: ignore[arg-type]
    return Service(config, ahead, log, tower_parts=parts)


def prompt(*parts: int | str) -> tuple[list[int], dict[int, int]]:
    """Tokens and pictures of parts: as many tokens of text, or the name of a picture."""
    tokens: list[int] = []
    pictures: dict[int, int] = {}
    for part in parts:
        if isinstance(part, int):
            tokens += [1] * part
        else:
            pictures[len(tokens)] = {"cat": CAT, "dog": DOG, "bird": BIRD}[part]
            tokens += [0] * ROWS
    return tokens, pictures


def ask(server: Service, *parts: int | str, output: int = 2, **options: object) -> Request:
    tokens, pictures = prompt(*parts)
    return server.add(tokens, output, pictures=pictures, **options)


def steps(server: Service) -> Iterator[StepPlan]:
    """The plans until nobody is left, one at a time."""
    while not server.nobody_left:
        plan = planned(server)
        check_integrity(server.scheduler)
        yield plan
        server.receive()


def runs(plan: StepPlan) -> int:
    return len(plan.tower or [])


def learnt(server: Service, streams: int = 0) -> Service:
    """The same server, which knows what steps and runs take, with running streams."""
    for length in (50, 30, 7):
        ask(server, length, "cat", length, client=Client("others", cache_group="others"))
        server.drain()
    for stream in range(streams):
        server.add([stream % 3] * 5, 900)
    for _ in range(10 * streams):
        server.schedule()
        server.receive()
    return server


def seconds(plan: StepPlan) -> float:
    """Return the time that the simulated workers take for a plan whose runs are whole."""
    return (step_ns(plan) + RUN_NS * runs(plan)) * 1e-9
