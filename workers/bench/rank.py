"""``python -m numaserve.workers.bench.rank``: one rank of a benchmark. Takes a task, answers it, ends."""

import sys
import time
from importlib import import_module
from pathlib import Path

import msgspec
from numaserve.workers.bench.tasks import (
    Failed,
    Line,
    Loaded,
    LoadModel,
    PassLines,
    RunSteps,
    Status,
    Task,
    UseNode,
    UseRing,
)
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import Launch


def main() -> int:
    """Run one rank, and return the exit status."""
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=Task)
    try:
        _send(_answer(task))
    except OperatorError as error:
        _send(Failed(str(error)))
        return 2
    return 0


def _answer(task: Task) -> Line:
    # Each task needs other modules, torch among them.
    match task:
        case RunSteps():
            from numaserve.workers.bench.steps import run_steps  # noqa: PLC0415

            return run_steps(task, _say)
        case LoadModel():
            return _load(task.launch)
        case UseRing():
            from numaserve.workers.bench.operations.ring import use_ring  # noqa: PLC0415

            return use_ring(task, _say)
        case UseNode():
            from numaserve.workers.bench.operations.nodes import use_node  # noqa: PLC0415

            return use_node(task, _say)
        case PassLines():
            from numaserve.workers.bench.operations.lines import pass_lines  # noqa: PLC0415

            return pass_lines(task)


def _load(launch: Launch) -> Loaded:
    from numaserve.workers.models.registry import families  # noqa: PLC0415
    from numaserve.workers.process.model import RankModel  # noqa: PLC0415
    from numaserve.workers.process.node import NodeContext  # noqa: PLC0415

    node = NodeContext.enter(launch)
    begin = time.perf_counter()
    families()
    if Path(launch.model).is_dir():
        import_module("numaserve.workers.weights.safetensors_source")
    ready = time.perf_counter()
    model = RankModel(launch, node, lambda done, total: _say(f"loading: {100 * done // max(total, 1)} %"))
    seconds = time.perf_counter() - ready
    for save in model.to_be_cached():
        _say("writing packed weights")
        save(lambda: None)
    return Loaded(seconds, model.origin, ready - begin, model.weight_bytes)


def _say(text: str) -> None:
    _send(Status(text))


def _send(line: Line) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
