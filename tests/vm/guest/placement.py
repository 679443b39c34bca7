"""Where threads run and where memory lies, and what the unit's limits make of that."""

import re
import subprocess
from pathlib import Path
from typing import Any

from tests.vm.guest.memory import buffers, by_node, kv_cache, ring_part
from tests.vm.guest.service import MODEL, complete, metric, restarted, run, settings, show, workers

_MIB = 1 << 20
_FRACTION = 0.85  # of the memory that is there, for weights, KV cache and scratch


def threads_stay_on_their_node() -> str:
    """Each thread of a worker that computes is pinned to a core of its own, of its node.

    Those of ZeroMQ are there before the worker knows its node, and have next to nothing to do.
    """
    told = ", ".join(map(bound, workers()))
    assert [len(worker["cpus"]) for worker in workers()] == [3, 2]
    return told


def memory_is_local() -> str:
    """Pages of a rank's weights, KV cache and part of the ring lie on its node, and nowhere else."""
    complete()
    found = workers()
    told = [local(worker, len(found)) for worker in found]
    assert metric("numaserve_worker_misplaced_pages") == 0
    return "; ".join(told)


def allowed_cpus_are_kept() -> str:
    """AllowedCPUs= leaves two cores of one node and one of the other."""
    settings("cpus", "AllowedCPUs=1-2,4")
    try:
        restarted()
        cores = [worker["cpus"] for worker in workers()]
    finally:
        settings("cpus")
    assert cores == [[1, 2], [4]], f"ranks have {cores}"
    return f"ranks have {cores}"


def memory_max_is_kept() -> str:
    """MemoryMax= bounds what is planned and what is taken."""
    limit = 1500 * _MIB
    settings("memory", f"MemoryMax={limit}")
    try:
        restarted()
        planned = sum(worker["weight_bytes"] + worker["kv_bytes"] for worker in workers())
        complete()
        group = Path("/sys/fs/cgroup", show("ControlGroup").lstrip("/"))
        events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
        used = int((group / "memory.current").read_text())
    finally:
        settings("memory")
    assert planned < _FRACTION * limit, f"{planned} bytes are planned of {limit}"
    assert events["oom_kill"] == "0" and used < limit
    most = _most_kv(limit)
    assert 0 < most < _FRACTION * limit, f"a KV cache of {most} bytes would be planned in {limit}"
    told = f"{planned / _MIB:.0f} MiB planned, {used / _MIB:.0f} used of {limit / _MIB:.0f}"
    return f"{told}, where there would be room for a KV cache of {most / _MIB:.0f}"


def _most_kv(limit: int) -> float:
    """Bytes of the largest KV cache that is planned in a control group with such a MemoryMax=."""
    told = Path("/run/topology-check")
    # Of this type it is waited for; --wait would want a bus, which this small system has not.
    properties = ("Type=oneshot", f"MemoryMax={limit}", f"StandardError=truncate:{told}")
    within = ("systemd-run", "--collect", *(f"--property={each}" for each in properties))
    command = (*within, "/opt/numaserve/current/bin/numaserve", "topology", MODEL, "--kv-cache-gib", "64")
    subprocess.run(command, check=False)  # it fails, as there is not so much
    found = re.search(r"lower it to at most ([\d.]+),", " ".join(told.read_text().split()))
    assert found is not None, f"a KV cache of 64 GiB was not refused: {told.read_text()[-600:]}"
    return float(found[1]) * 1024 * _MIB


def cpu_quota_is_kept() -> str:
    """CPUQuota= of two and a half of five cores leaves two threads on one node."""
    settings("quota", "CPUQuota=250%")
    try:
        restarted()
        cores = [worker["cpus"] for worker in workers()]
        stat = Path("/sys/fs/cgroup", show("ControlGroup").lstrip("/"), "cpu.stat")
        before = _figures(stat)
        complete()
        after = _figures(stat)
        log = run("journalctl", "-b", "-u", "numaserve", "-o", "cat", "--no-pager")
    finally:
        settings("quota")
    assert [len(each) for each in cores] == [2], f"ranks have {cores}"
    assert "the CPU quota of 2.5 of 5 cores allows 2 worker threads on node 0" in log
    periods, throttled = (after[name] - before[name] for name in ("nr_periods", "nr_throttled"))
    return f"one rank on cores {cores[0]}; {throttled} of {periods} periods ran out"


def bound(worker: dict[str, Any]) -> str:
    """Raises `AssertionError` unless a worker has all cores of its node, a thread on each, and none elsewhere."""
    cores = cores_of(worker["node"])
    tasks = Path(f"/proc/{worker['pid']}/task").iterdir()
    lists = [allowed(task) for task in tasks if not (task / "comm").read_text().startswith("ZMQbg")]
    assert all(each <= cores for each in lists), f"rank {worker['rank']} may run on {lists}, its node has {cores}"
    alone = {next(iter(each)) for each in lists if len(each) == 1}
    assert alone == {*worker["cpus"]} == cores, f"threads are pinned to {alone}, the node has {cores}"
    return f"{len(lists)} threads on node {worker['node']}"


def local(worker: dict[str, Any], ranks: int) -> str:
    """Raises `AssertionError` unless all that a worker of so many has in memory lies on its node."""
    own = buffers(worker["pid"])
    there = by_node(own)
    kv = by_node(kv_cache(own, worker["kv_bytes"]))
    parts = {"KV": kv} | ({"ring": ring_part(worker["pid"], worker["rank"], ranks)} if ranks > 1 else {})
    assert all({*part} == {worker["node"]} for part in (there, *parts.values())), f"by node: {there}, {parts}"
    (all_of_it,) = there.values()
    assert all_of_it >= worker["weight_bytes"], f"{all_of_it} bytes are there, the weights are {worker['weight_bytes']}"
    told = "".join(f", {sum(part.values()) / _MIB:.0f} MiB {name}" for name, part in parts.items())
    return f"rank {worker['rank']}, node {worker['node']}: {all_of_it / _MIB:.0f} MiB{told}, none elsewhere"


def cores_of(node: int) -> set[int]:
    """The cores of a node."""
    return _cpus(Path(f"/sys/devices/system/node/node{node}/cpulist").read_text())


def allowed(task: Path) -> set[int]:
    """The cores that a process or a thread may run on, by its folder below /proc."""
    (line,) = (line for line in (task / "status").read_text().splitlines() if line.startswith("Cpus_allowed_list:"))
    return _cpus(line.partition(":")[2])


def _figures(stat: Path) -> dict[str, int]:
    return {name: int(value) for name, value in map(str.split, stat.read_text().splitlines())}


def _cpus(text: str) -> set[int]:
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus
