"""The limits of a plan, for tests that name only some of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.windows import WindowTable

_LEAST = Capacity(
    num_pages=1,
    context_length=1,
    max_slots=64,
    max_step_tokens=512,
    max_logit_rows=512,
    num_snapshots=0,
    max_drafts=0,
    window_pages=(),
    feature_tiles=0,
)


def capacity(**limits: Any) -> Capacity:
    """A capacity with `limits`. Without others a page, and no snapshots, draft tokens of states, window tables or
    images."""
    return structs.replace(_LEAST, **limits)


def plan_limits(
    num_pages: int, context_length: int, max_slots: int = 64, max_step_tokens: int = 512, **others: Any
) -> SchedulerConfig:
    """The limits of a plan. `others` are those that `with_limits` takes."""
    sizes = {"num_pages": num_pages, "context_length": context_length, "max_slots": max_slots}
    pages = [each.num_pages for each in others.get("window_tables", ())]
    limits = {name: others.pop(name) for name in Capacity.__struct_fields__ if name in others}
    of_all = capacity(max_step_tokens=max_step_tokens, window_pages=tuple(pages), **sizes, **limits)
    windows = tuple(each.window for each in others.pop("window_tables", ()))
    return SchedulerConfig(of_all, max_step_tokens, windows=windows, **others)


def with_limits(
    config: SchedulerConfig, window_tables: Sequence[WindowTable] | None = None, **changes: Any
) -> SchedulerConfig:
    """The limits of a plan with `changes`: fields of the capacity and of the configuration, or `window_tables`."""
    if window_tables is not None:
        changes["windows"] = tuple(each.window for each in window_tables)
        changes["window_pages"] = tuple(each.num_pages for each in window_tables)
    limits = {name: changes.pop(name) for name in Capacity.__struct_fields__ if name in changes}
    if "max_step_tokens" in limits:
        changes.setdefault("shared_step_tokens", limits["max_step_tokens"])
    return replace(config, capacity=structs.replace(config.capacity, **limits), **changes)
