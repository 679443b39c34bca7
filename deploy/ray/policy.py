"""The autoscaling policy of Serve, which adds and ends replicas by the load that servers report."""

from __future__ import annotations

from typing import Any

from numaserve.ray.load import replicas_for
from ray.serve.config import AutoscalingContext


class LoadPolicy:
    """The autoscaling policy. Serve calls it in each round, and applies delays and bounds to the result."""

    def __init__(self, target_requests: float, target_kv_usage: float) -> None:
        self._target_requests = target_requests
        self._target_kv_usage = target_kv_usage

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas to run; the current target until a server has reported its load."""
        said = context.aggregated_metrics or {}
        loads = [
            {name: values.get(replica, 0.0) for name, values in said.items()} for replica in said.get("waiting", {})
        ]
        if not loads:
            return context.target_num_replicas, {}
        loads.append({"running": 0.0, "waiting": context.total_queued_requests or 0.0, "kv_usage": 0.0})
        count = replicas_for(loads, target_requests=self._target_requests, target_kv_usage=self._target_kv_usage)
        return count, {}
