"""``numaserve bench load``: a first and a second start."""

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from numaserve.server.cli.bench_model import Model, Shape, Tp, about, checkpoint, deployments
from numaserve.server.cli.bench_options import Json
from numaserve.server.cli.bench_report import MachineReport
from numaserve.server.cli.config_options import takes_settings
from numaserve.workers.bench.group import Say, launches_of, run_ranks
from numaserve.workers.bench.reading import checkpoint_files, read_seconds
from numaserve.workers.bench.rows import Figure, Row, Times
from numaserve.workers.bench.tasks import Loaded, LoadModel
from numaserve.workers.interface.protocol import WeightsCache
from numaserve.workers.planning.deployment import Deployment

_LOADS = 3
# A checkpoint that was changed in the last two seconds is not cached yet.
_TRIES = 4
_BETWEEN_S = 1.0


@takes_settings("threads_per_worker")
def bench_load(
    model: Model = None, *, shape: Shape = None, tp: Tp = None, options: dict[str, Any], json: Json = None
) -> None:
    """Load a model from its files and from packed weights, compared with reading them from the page cache."""
    options |= {"max_running_requests": 1, "context_length": 32, "state_cache_gib": 0}
    with MachineReport("load", json) as report, checkpoint(model, shape, report.say) as (name, path):
        for deployment in deployments(name, path, tp, options):
            report.add(_load_rows(about(name, deployment), path, deployment, report.say))


def _load_rows(what: dict[str, str | int], path: Path, deployment: Deployment, say: Say) -> Iterator[Row]:
    """Yield the rows of a first start, from the checkpoint, and of a second one, from a new cache of packed weights."""
    tasks = [LoadModel(launch) for launch in deployment.launches]
    yield _load_row(what | {"start": "first"}, checkpoint_files(path), deployment=deployment, tasks=tasks, say=say)
    with tempfile.TemporaryDirectory(prefix="numaserve-bench-") as folder:
        Path(folder).chmod(0o700)
        cache = WeightsCache(folder, limit_bytes=sys.maxsize)
        cached = [LoadModel(msgspec.structs.replace(launch, weights_cache=cache)) for launch in deployment.launches]
        for _ in range(_TRIES):
            if {answer.origin for answer in _run(deployment, cached, say)} == {"cache"}:
                break
            time.sleep(_BETWEEN_S)
        files = [file for file in Path(folder).rglob("*") if file.is_file()]
        yield _load_row(what | {"start": "second"}, files, deployment=deployment, tasks=cached, say=say)


def _load_row(
    what: dict[str, str | int], files: Sequence[Path], *, deployment: Deployment, tasks: Sequence[LoadModel], say: Say
) -> Row:
    threads = sum(len(rank.cpus) for rank in deployment.ranks)
    say("reading the files")
    before = read_seconds(files, threads, _LOADS)
    runs = [_run(deployment, tasks, say) for _ in range(_LOADS)]
    read, read_new = map(min, before, read_seconds(files, threads, _LOADS))
    times = Times.of([max(answer.seconds for answer in answers) for answers in runs])
    figures: dict[str, Figure] = {
        "weights_from": runs[0][0].origin,
        "files_gb": sum(file.stat().st_size for file in files) / 1e9,
        "weights_gb": sum(answer.weight_bytes for answer in runs[0]) / 1e9,
        "best_s": times.best,
        "median_s": times.median,
        "import_s": min(max(answer.import_seconds for answer in answers) for answers in runs),
        "read_s": read,
        "read_to_new_memory_s": read_new,
        "load_over_read": times.best / read,
        "load_over_read_to_new_memory": times.best / read_new,
    }
    return Row("load", what, figures)


def _run(deployment: Deployment, tasks: Sequence[LoadModel], say: Say) -> list[Loaded]:
    with launches_of(deployment) as (launches, segment):
        # The ring is not used, but a rank needs one.
        ringed = [
            LoadModel(msgspec.structs.replace(task.launch, ring_fd=launch.ring_fd, ring_nonce=launch.ring_nonce))
            for task, launch in zip(tasks, launches, strict=True)
        ]
        return run_ranks(ringed, Loaded, segment, say)
