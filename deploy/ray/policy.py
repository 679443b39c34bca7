"""When replicas are added and ended: Serve's autoscaling policy over what the servers say of themselves."""

from __future__ import annotations

from typing import Any

from numaserve.ray.load import replicas_for
from ray.serve.config import AutoscalingContext


class LoadPolicy:
    """Serve calls it in each of its rounds, and applies delays and bounds to what it says."""

    def __init__(self, target_requests: float, target_kv_usage: float) -> None:
        self._target_requests = target_requests
        self._target_kv_usage = target_kv_usage

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """How many replicas there should be. Until a server has said something: as many as there are."""
        said = context.aggregated_metrics or {}
        loads = [
            {name: values.get(replica, 0.0) for name, values in said.items()} for replica in said.get("waiting", {})
        ]
        if not loads:
            return context.target_num_replicas, {}
        loads.append({"running": 0.0, "waiting": context.total_queued_requests or 0.0, "kv_usage": 0.0})
        count = replicas_for(loads, target_requests=self._target_requests, target_kv_usage=self._target_kv_usage)
        return count, {}
