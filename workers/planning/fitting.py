"""The KV cache, the recurrent states and the context that fit the machine's memory next to the weights, and advice if
they do not fit."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.interface.windows import Window, window_tables
from numaserve.workers.layers.partition import Partition
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.cache_sizes import divide_memory
from numaserve.workers.planning.images import feature_tiles
from numaserve.workers.planning.narrower import narrower_settings
from numaserve.workers.planning.needs import (
    RankNeeds,
    format_bytes,
    full_pages,
    longer_steps,
    max_logit_rows,
    pages_of,
    step_tokens,
)
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.placement import RankCores
from numaserve.workers.planning.pools import TooLittleMemory, memory_pools
from numaserve.workers.planning.states import max_drafts
from numaserve.workers.planning.topology import Topology

_CACHES_DIVISOR = 16  # longer steps may take one such part of the caches
USEFUL_CONTEXT = 1024  # a default context is not reduced below this
_NO_SNAPSHOTS = (
    "prompts are always computed whole, because too little memory is left for cached recurrent states: lower"
    " --max-running-requests, free some memory or raise --mem-fraction-static"
)


@dataclass(frozen=True)
class Fitting:
    """A model's memory on the machine."""

    options: DeploymentOptions  # with the numbers of slots and of step tokens, and the context, that were chosen
    partition: Partition
    needs: RankNeeds
    capacity: Capacity
    windows: tuple[Window, ...]  # of the window tables
    notes: tuple[str, ...]  # sentences for the operator

    @property
    def cached(self) -> list[int]:
        """The pages, the snapshots, and the pages of each window table that running sequences leave to anchors."""
        slots, step_tokens = self.capacity.max_slots, self.options.max_step_tokens
        tables = window_tables(self.windows, self.capacity)
        anchored = [pages - window.least_pages(slots, step_tokens) for window, pages in tables]
        return [self.capacity.num_pages, self.capacity.num_snapshots, *anchored]


def fit(options: DeploymentOptions, model: ModelConfig, topology: Topology, ranks: Sequence[RankCores]) -> Fitting:
    """Return the memory of `ranks`, with the longest steps whose scratch takes little of the caches where the operator
    leaves the size of steps out.

    Raises `OperatorError` if the model does not fit. The message states the missing bytes and, if there is one, a
    quantization that would fit.
    """
    try:
        fitting = _fit(options, model, topology, ranks)
    except TooLittleMemory as error:
        narrower, more = _quantization(options, model, topology, ranks, error.missing)
        names_context = any("--context-length" in each for each in error.remedies)
        shorter = [] if names_context else _shorter_steps(options, model, topology, ranks)
        raise TooLittleMemory(error.what, error.missing, [*narrower, *shorter, *error.remedies], more=more) from None
    for tokens in reversed(longer_steps(options, model)):
        with suppress(OperatorError):
            longer = _fit(replace(options, max_step_tokens=tokens), model, topology, ranks)
            if _leaves_caches(longer, fitting):
                return longer
    return fitting


def _fit(options: DeploymentOptions, model: ModelConfig, topology: Topology, ranks: Sequence[RankCores]) -> Fitting:
    partition = model.partition([len(rank.cpus) for rank in ranks], options.settings)
    needs, caches = divide_memory(options, model, partition, memory_pools(options, topology, ranks))
    page_bytes = sum(needs.per_page) - sum(sum(each) for each in needs.per_window_page if caches.window_pages)
    context, notes = _choose_context(options, model, caches.num_pages, page_bytes)
    if caches.slots < options.max_running_requests:
        notes += (_fewer_slots(options, needs, caches.slots),)
    if model.has_states and not caches.num_snapshots and options.state_cache_gib is None:
        notes += (_NO_SNAPSHOTS,)
    chosen = replace(options, max_running_requests=caches.slots, context_length=context)
    num_pages = min(caches.num_pages, full_pages(chosen, model, context))
    capacity = Capacity(
        num_pages=num_pages,
        context_length=context,
        max_slots=caches.slots,
        max_step_tokens=step_tokens(chosen, model),
        max_logit_rows=max_logit_rows(chosen),
        num_snapshots=caches.num_snapshots,
        max_drafts=max_drafts(chosen, model, partition),
        window_pages=tuple(min(pages, num_pages) for pages in caches.window_pages),
        feature_tiles=feature_tiles(model),
    )
    windows = tuple(model.decoder.windows[: len(caches.window_pages)])
    return Fitting(chosen, partition, needs, capacity, windows, notes)


def _leaves_caches(longer: Fitting, shorter: Fitting) -> bool:
    """Return whether longer steps leave as many running sequences as shorter ones, and all but a small part of the
    caches."""
    if longer.capacity.max_slots < shorter.capacity.max_slots:
        return False
    ours, theirs = longer.cached, shorter.cached
    return len(ours) == len(theirs) and all(
        own * _CACHES_DIVISOR >= other * (_CACHES_DIVISOR - 1) for own, other in zip(ours, theirs, strict=True)
    )


def _fewer_slots(options: DeploymentOptions, needs: RankNeeds, slots: int) -> str:
    states = sum(needs.states)
    why = "more of them would leave little memory for tokens of long sequences"
    if states:
        why = f"the recurrent states of a sequence take {format_bytes(states // slots)}"
    return (
        f"at most {slots} sequences run at a time instead of {options.max_running_requests}, because {why}: free some"
        " memory, raise --mem-fraction-static or set --max-running-requests"
    )


def _quantization(
    options: DeploymentOptions, model: ModelConfig, topology: Topology, ranks: Sequence[RankCores], missing: int
) -> tuple[list[str], str]:
    """Return the remedy of narrower weights, found by planning with them, or a text with the bytes that the narrowest
    weights still lack. Return neither if the checkpoint does not support them or already has them."""
    lack = ""
    for name, settings in narrower_settings(options.settings):
        try:
            fitting = _fit(replace(options, settings=settings), model, topology, ranks)
        except TooLittleMemory as error:
            if error.missing < missing:
                lack = f", or {format_bytes(error.missing)} more with --quantization {name}"
        except OperatorError:
            continue
        else:
            return [f"set --quantization {name} (fits with a context of {fitting.capacity.context_length} tokens)"], ""
    return [], lack


def _shorter_steps(
    options: DeploymentOptions, model: ModelConfig, topology: Topology, ranks: Sequence[RankCores]
) -> list[str]:
    """Return the remedy of a context with which a bidirectional model fits, found by planning with it. The scratch of
    other models does not depend on the context."""
    context = options.context_length or model.max_position
    while model.bidirectional and (context := context // 2) >= PAGE_SIZE:
        with suppress(OperatorError):
            _fit(replace(options, context_length=context), model, topology, ranks)
            return [f"set --context-length to at most {context}"]
    return []


def _choose_context(
    options: DeploymentOptions, model: ModelConfig, pages: int, bytes_per_page: int
) -> tuple[int, tuple[str, ...]]:
    """Return the context length, and notes about it. One sequence of full length and one spare page must fit."""
    wanted = options.context_length or model.max_position
    if wanted > model.max_position:
        raise OperatorError(
            f"--context-length {wanted} exceeds the model's limit of {model.max_position} tokens: lower the option"
        )
    holds = max(pages - 1, 0) * PAGE_SIZE
    if wanted <= holds:
        return wanted, ()
    needed = (pages_of(wanted) + 1) * bytes_per_page
    remedies = ["raise --kv-cache-gib"] if options.kv_cache_gib else ["free some memory", "raise --mem-fraction-static"]
    if options.state_cache_gib and not options.kv_cache_gib:
        remedies.append("lower --state-cache-gib")
    if options.context_length is not None or holds < min(USEFUL_CONTEXT, wanted):
        shorter = [f"set --context-length to at most {holds}"] if holds >= PAGE_SIZE else []
        what = f"the KV cache holds {holds} tokens, but a sequence of {wanted} tokens needs {format_bytes(needed)}"
        if options.kv_cache_gib:  # narrower weights would not change this
            raise OperatorError(f"{what}: {' or '.join([*remedies, *shorter])}")
        raise TooLittleMemory(what, needed - pages * bytes_per_page, [*remedies, *shorter])
    note = f"the context is {holds} tokens instead of the model's {wanted}, because the KV cache holds no more"
    return holds, (f"{note}: {' or '.join(remedies)}",)
