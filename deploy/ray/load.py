"""The load of a server, from its /metrics, and the number of replicas that the load needs."""

import math
import re
from collections.abc import Iterable, Mapping

_GAUGES = {
    "running": re.compile(r'^numaserve_requests\{[^}]*\bstate="running"[^}]*\} (.+)$', re.MULTILINE),
    "waiting": re.compile(r'^numaserve_requests\{[^}]*\bstate="waiting"[^}]*\} (.+)$', re.MULTILINE),
    "kv_usage": re.compile(r"^numaserve_kv_usage_ratio\{[^}]*\} (.+)$", re.MULTILINE),
}


def load_of(metrics: str) -> dict[str, float]:
    """Return `running` and `waiting` requests, and `kv_usage` from 0 to 1, from the text of GET /metrics."""
    found = {name: gauge.search(metrics) for name, gauge in _GAUGES.items()}
    return {name: float(match[1]) if match else 0.0 for name, match in found.items()}


def replicas_for(loads: Iterable[Mapping[str, float]], *, target_requests: float, target_kv_usage: float) -> int:
    """Return the number of replicas that brings requests and KV cache usage per replica to their targets.

    KV cache usage counts only for servers with waiting requests: running sequences alone are no reason for another
    server.
    """
    loads = list(loads)
    requests = sum(load["running"] + load["waiting"] for load in loads)
    held = sum(load["kv_usage"] for load in loads if load["waiting"])
    return max(1, math.ceil(requests / target_requests), math.ceil(held / target_kv_usage))
