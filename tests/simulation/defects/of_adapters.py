"""Defects in the places of LoRA adapters, in their requests and in their loads."""

from collections.abc import Callable, Sequence
from typing import Any

from numaserve.server.adapters.adapters import Adapters
from numaserve.server.adapters.rank_loads import RankLoads
from numaserve.server.adapters.registry import Place, Registry
from numaserve.server.engine.adapter_work import AdapterWork
from numaserve.server.scheduler.cache.scope import CacheScope
from numaserve.server.scheduler.request import Request
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.workers.interface.protocol import LoraAdapter

from tests.simulation.defects.registry import defect


@defect(Registry, "_settle", first_seed=16)
def an_unload_waits_for_no_request(right: Callable[..., None], registry: Registry, place: Place) -> None:
    """The next load takes the place of an adapter that requests still use."""
    requests, place.requests = place.requests, 0
    right(registry, place)
    place.requests = requests


@defect(Scheduler, "plans_with", first_seed=16)
def a_place_is_free_while_a_plan_names_it(_right: Callable[..., bool], *_arguments: Any) -> bool:
    """Workers overwrite an adapter that the plan after this one uses."""
    return False


@defect(Request, "__post_init__", first_seed=16)
def a_reload_finds_the_prefixes_of_the_load_before(right: Callable[..., None], request: Request) -> None:
    """Keys and values of other weights are found under the adapter's name."""
    right(request)
    object.__setattr__(request, "scope", CacheScope(request.client.cache_group, request.cache_salt))


@defect(Adapters, "at_launch")
def new_workers_have_no_adapters(_right: Callable[..., Any], _adapters: Adapters) -> Sequence[LoraAdapter]:
    """Requests that survive the workers go on without theirs."""
    return []


@defect(RankLoads, "down")
def a_load_outlives_its_workers(_right: Callable[..., None], ranks: RankLoads, why: str) -> None:
    """Nobody answers it."""
    ranks._why_not = why


@defect(AdapterWork, "drop", first_seed=4290)
def an_adapter_that_new_workers_lack_stays(_right: Callable[..., None], *_arguments: Any) -> None:
    """Its requests go on with whatever is in the place."""
