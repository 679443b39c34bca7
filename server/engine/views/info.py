"""The content of GET /server_info and GET /v1/loads."""

from collections.abc import Collection, Mapping, Sequence

import msgspec
from numaserve.server.engine.types import Load
from numaserve.server.metrics.kv_disk_figures import DiskFigures
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.workers.interface.protocol import Launch, Ready
from numaserve.workers.interface.settings import ActivationDtype, ModelSettings


def limits_info(limits: SchedulerConfig) -> dict[str, object]:
    """Return the limits, under the names of the command line's options where there is one."""
    windows = [{"window": table.window.tokens, "num_pages": table.num_pages} for table in limits.window_tables]
    return {
        "context_length": limits.capacity.context_length,
        "num_pages": limits.capacity.num_pages,
        **({"window_tables": windows} if windows else {}),
        **({"feature_tiles": limits.capacity.feature_tiles} if limits.capacity.feature_tiles else {}),
        "page_size": limits.page_size,
        "max_running_requests": limits.max_running,
        "chunked_prefill_size": limits.shared_step_tokens,
        "enable_prefix_cache": limits.enable_prefix_cache,
    }


def settings_info(settings: ModelSettings, multiplied_by: Mapping[ActivationDtype, Sequence[str]]) -> dict[str, object]:
    """Return the model's settings by name, and the weight formats that each activation type multiplies."""
    shown: dict[str, object] = msgspec.to_builtins(settings)
    return shown | {"multiplied_by": multiplied_by}


def disk_info(path: str, figures: DiskFigures) -> dict[str, object]:
    """Return the state of the disk tier, whose folder is at `path`."""
    return {
        "path": path,
        "state": figures.state,
        "off_reason": figures.off_reason or None,
        "limit_bytes": figures.limit_bytes,
        "read_bytes_per_s": round(figures.read_bytes_per_s),
        **{
            kind: {"number": each.number, "limit": each.most, "bytes": each.nbytes}
            for kind, each in figures.records.items()
        },
    }


def load_of(scheduler: Scheduler) -> Load:
    """Return the load of the scheduler."""
    stats, config = scheduler.stats(), scheduler.config
    return Load(
        running=stats.running,
        waiting=stats.waiting,
        tokens_used=stats.pages_active * config.page_size,
        token_capacity=config.capacity.num_pages * config.page_size,
    )


def loading_line(ready: Collection[Ready]) -> str:
    """Return a line for the log: the origin of all ranks' weights, and the seconds that the slowest rank took."""
    origins = " and the ".join(sorted({each.weights_from for each in ready}))
    seconds = max(each.weights_ns for each in ready) / 1e9
    return (
        f"loaded {sum(each.weight_bytes for each in ready) / 2**20:.0f} MiB of weights from the {origins} "
        f"in {seconds:.2f} s"
    )


def workers_info(
    launches: Sequence[Launch], pids: Sequence[int], ready: Mapping[int, Ready], hosts: Sequence[str]
) -> list[dict[str, object]]:
    """Return process, place and sizes of each rank that runs. `hosts` as in `EngineConfig`: a rank on another host has
    the agent's address."""
    workers: list[dict[str, object]] = []
    for launch, pid in zip(launches, pids, strict=False):  # there are no processes between two launches of the group
        rank = launch.number
        worker: dict[str, object] = {
            "rank": rank,
            "pid": pid,
            "node": launch.nodes[launch.rank],
            "cpus": launch.cpus[launch.rank],
        }
        if hosts and hosts[launch.settings.stage]:
            worker["host"] = hosts[launch.settings.stage]
        if rank in ready:
            told = ready[rank]
            worker |= {
                "isa": told.isa,
                "weight_bytes": told.weight_bytes,
                "weights_from": told.weights_from,
                "weights_seconds": told.weights_ns / 1e9,
                "kv_bytes": told.kv_bytes,
            }
            if told.state_bytes:
                worker["state_bytes"] = told.state_bytes
        workers.append(worker)
    return workers
