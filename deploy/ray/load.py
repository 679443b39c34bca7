"""A server's load by its /metrics, and how many replicas that asks for."""

import math
from collections.abc import Iterable, Mapping

_GAUGES = {
    'numaserve_requests{state="running"': "running",
    'numaserve_requests{state="waiting"': "waiting",
    "numaserve_kv_usage_ratio": "kv_usage",
}


def load_of(metrics: str) -> dict[str, float]:
    """`running` and `waiting` requests, and `kv_usage` from 0 to 1, of what GET /metrics says."""
    found = dict.fromkeys(_GAUGES.values(), 0.0)
    for line in metrics.splitlines():
        for begin, name in _GAUGES.items():
            if line.startswith(begin):
                found[name] = float(line.rpartition(" ")[2])
    return found


def replicas_for(loads: Iterable[Mapping[str, float]], *, target_requests: float, target_kv_usage: float) -> int:
    """As many as bring requests and KV cache in use to what they should be.

    The cache counts only where requests wait: what sequences hold that all run is no reason for another server.
    """
    loads = list(loads)
    requests = sum(load["running"] + load["waiting"] for load in loads)
    held = sum(load["kv_usage"] for load in loads if load["waiting"])
    return max(1, math.ceil(requests / target_requests), math.ceil(held / target_kv_usage))
