"""Where threads run and where memory lies, and what the unit's limits make of that."""

import re
from pathlib import Path

from tests.vm.guest.service import complete, metric, restarted, run, settings, show, workers

_MIB = 1 << 20
# Mappings of less are the interpreter's, from before the policy was set.
_OF_WEIGHTS = 16 * _MIB


def threads_stay_on_their_node() -> str:
    """Each thread of a worker that computes is pinned to a core of its own, of its node.

    Those of ZeroMQ are there before the worker knows its node, and have next to nothing to do.
    """
    told = []
    for worker in workers():
        cores = _cpus(Path(f"/sys/devices/system/node/node{worker['node']}/cpulist").read_text())
        tasks = Path(f"/proc/{worker['pid']}/task").iterdir()
        lists = [_allowed(task) for task in tasks if not (task / "comm").read_text().startswith("ZMQbg")]
        assert all(each <= cores for each in lists), f"rank {worker['rank']} may run on {lists}, its node has {cores}"
        alone = {next(iter(each)) for each in lists if len(each) == 1}
        assert alone == {*worker["cpus"]} == cores, f"threads are pinned to {alone}, the node has {cores}"
        told.append(f"{len(lists)} threads on node {worker['node']}")
    assert [len(worker["cpus"]) for worker in workers()] == [3, 2]
    return ", ".join(told)


def memory_is_local() -> str:
    """Pages of a rank's weights, KV cache and part of the ring lie on its node, and nowhere else."""
    complete()
    told = []
    for worker in workers():
        maps = Path(f"/proc/{worker['pid']}/numa_maps").read_text().splitlines()
        large = [found for line in maps if "file=" not in line and sum((found := _bytes(line)).values()) >= _OF_WEIGHTS]
        # The last ones are the ranks' parts; only of its own a process sees the policy.
        part = _bytes([line for line in maps if "numaserve-ring" in line][worker["rank"] - 2])
        own = sum(found.get(worker["node"], 0) for found in large)
        assert own > worker["weight_bytes"], f"{own} bytes are there, the weights are {worker['weight_bytes']}"
        assert all({*found} == {worker["node"]} for found in (*large, part)), f"by node: {large}, ring: {part}"
        told.append(f"rank {worker['rank']}: {own / _MIB:.0f} MiB on node {worker['node']}, none elsewhere")
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
    assert planned < 0.85 * limit, f"{planned} bytes are planned of {limit}"
    assert events["oom_kill"] == "0" and used < limit
    return f"{planned / _MIB:.0f} MiB planned, {used / _MIB:.0f} used of {limit / _MIB:.0f}"


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
    assert "the CPU quota of 2.5 of 5 cores allows 2 on node 0" in log
    periods, throttled = (after[name] - before[name] for name in ("nr_periods", "nr_throttled"))
    return f"one rank on cores {cores[0]}; {throttled} of {periods} periods ran out"


def _figures(stat: Path) -> dict[str, int]:
    return {name: int(value) for name, value in map(str.split, stat.read_text().splitlines())}


def _bytes(line: str) -> dict[int, int]:
    """Bytes by node of a mapping, a line of numa_maps."""
    size = int(line.rpartition("kernelpagesize_kB=")[2]) << 10 if "kernelpagesize_kB=" in line else 0
    return {int(node): int(pages) * size for node, pages in re.findall(r" N(\d+)=(\d+)", line)}


def _allowed(task: Path) -> set[int]:
    (line,) = (line for line in (task / "status").read_text().splitlines() if line.startswith("Cpus_allowed_list:"))
    return _cpus(line.partition(":")[2])


def _cpus(text: str) -> set[int]:
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus
