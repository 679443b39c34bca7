"""The latency limits of the tasks of MLPerf Inference, for the server scenario."""

import yaml
from numaserve.configs import mlperf
from numaserve.workers.bench.sizes import Entry, Sizes
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.roofline.machine import Positive


class MlperfTask(Entry):
    """A task: the 99th percentile of each latency may be at most its limit. `source` is a key of the file's sources."""

    name: str
    ttft_ms: Positive
    tpot_ms: Positive
    source: str


class _Model(Entry):
    sizes: Sizes
    tasks: list[MlperfTask]


class _File(Entry):
    other_models: str
    sources: dict[str, str]
    models: list[_Model]


def tasks() -> list[MlperfTask]:
    """Return all tasks."""
    return [task for model in _read().models for task in model.tasks]


def task_of(config: ModelConfig, name: str | None = None) -> MlperfTask:
    """Return the task `name`; without a name, the first task of the model's sizes, or the task of all other models.

    Raises `OperatorError` for an unknown name.
    """
    file = _read()
    if name is None:
        own = (model.tasks[0] for model in file.models if model.sizes.are_of(config))
        return next(own, None) or task_of(config, file.other_models)
    known = {task.name: task for task in tasks()}
    if name not in known:
        raise OperatorError(f"--mlperf-task {name} is not a known task: use one of {', '.join(known)}")
    return known[name]


def _read() -> _File:
    return _File.model_validate(yaml.safe_load(mlperf().read_text()))
