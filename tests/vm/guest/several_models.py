"""Two models of one gateway, each on a node of its own."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.vm.guest.placement import allowed, bound, cores_of, local
from tests.vm.guest.service import (
    CONFIG,
    CONTEXT,
    MODEL,
    NAME,
    PORT,
    STEP_SECONDS,
    UNIT,
    Stream,
    complete,
    get,
    is_alive,
    metric,
    restarted,
    run,
    settings,
    wait_until,
    workers,
)

_NODES = {"first": 0, "second": 1}
_FILE = CONFIG.with_name("models.yaml")
_SERVE = f"/opt/numaserve/current/bin/numaserve serve --models {_FILE} --host 127.0.0.1 --port {PORT}"
_TOKENS = 24
_MANY = 4000  # which are still on their way when the other model's worker is back


def two_models_have_a_node_each() -> str:
    """Each model's threads and memory are on its node alone; both answer, and are told of in lists and metrics. While a
    worker of one is killed and loaded again, a stream of the other goes on."""
    with _both():
        told = [_on_its_node(name, node) for name, node in _NODES.items()]
        listed = {each["id"]: each["state"] for each in json.loads(get("/v1/models")[1])["data"]}
        assert listed == dict.fromkeys(_NODES, "ready"), listed
        lines = get("/metrics")[1].decode().splitlines()
        kinds = [line for line in lines if line.startswith("# TYPE ")]
        assert len(kinds) == len({line.split()[2] for line in kinds}), "a family is told twice"
        assert get("/v1/completions", "POST", {"model": NAME, "prompt": "x"})[0] == 404
        told.append(_worker_killed())
    return "; ".join(told)


def _on_its_node(name: str, node: int) -> str:
    assert complete(model=name)
    (worker,) = workers(name)
    assert worker["node"] == node
    server = allowed(Path(f"/proc/{_parent(worker['pid'])}"))
    assert server <= cores_of(node), f"the server of {name} may run on {server}"
    assert metric("numaserve_worker_up", name) == 1
    assert metric("numaserve_worker_misplaced_pages", name) == 0
    return f"{name}: {bound(worker)}, {local(worker, 1)}"


def _worker_killed() -> str:
    wanted = complete(_TOKENS, "first")
    ((killed,), (other,)) = workers("first"), workers("second")
    stream, other_stream = Stream(_TOKENS, "first"), Stream(_MANY, "second")
    try:
        stream.wait_for(4)
        other_stream.wait_for(4)
        os.kill(killed["pid"], signal.SIGKILL)
        wait_until("the worker has ended", lambda: not is_alive(killed["pid"]))
        before = len(other_stream.events)
        assert stream.text() == wanted
        came = len(other_stream.events) - before
        assert other_stream.is_alive() and came > 0, f"{came} events of the other model's stream came"
        assert workers("second") == [other]
        assert [metric("numaserve_worker_restarts_total", name) for name in _NODES] == [1, 0]
    finally:
        other_stream.left = True  # its thousands of tokens would slow down what follows a failure
    return f"a killed worker: the same {_TOKENS} tokens, meanwhile {came} of the other model's came"


@contextmanager
def _both() -> Iterator[None]:
    """The service with two models instead of one; behind it the service starts, and need not be waited for."""
    place = {
        "model": MODEL,
        "max-running-requests": 4,
        "context-length": CONTEXT,
        "step-deadline-seconds": STEP_SECONDS,
    }
    _FILE.write_text(json.dumps({"models": {name: {**place, "nodes": node} for name, node in _NODES.items()}}))
    settings("models", "ExecStart=", f"ExecStart={_SERVE}")
    try:
        restarted()
        yield
    finally:
        settings("models")
        _FILE.unlink()
        run("systemctl", "restart", "--no-block", UNIT)


def _parent(pid: int) -> int:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("PPid:"))
    return int(line.split()[1])
