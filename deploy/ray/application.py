"""The builder of the application: `serve run numaserve.ray.application:build model=...`.

Serve makes `Settings` from these arguments by the annotation of `build`. The annotation must be a type, not a string,
so this module cannot import annotations from `__future__`.
"""

from numaserve.ray.ingress import Ingress
from numaserve.ray.nodes import RESOURCE
from numaserve.ray.policy import LoadPolicy
from numaserve.ray.replica import Replica
from numaserve.ray.router import PrefixRouter
from numaserve.ray.settings import Settings
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

_ENDING_SECONDS = 15.0  # for a server to end, after its drain time


def build(settings: Settings) -> serve.Application:
    """Return an ingress in front of replicas, each with `settings.nodes` NUMA nodes of a host."""
    policy = AutoscalingPolicy(
        policy_function=LoadPolicy,
        policy_kwargs={"target_requests": settings.target_requests, "target_kv_usage": settings.target_kv_usage},
    )
    replicas = serve.deployment(
        Replica,
        name="Replica",
        # The cores belong to the nodes; Ray's own CPU count is left to other work.
        ray_actor_options={"num_cpus": 0, "resources": {RESOURCE: settings.nodes}},
        max_ongoing_requests=settings.max_requests,
        autoscaling_config=AutoscalingConfig(
            min_replicas=settings.min_replicas,
            max_replicas=settings.max_replicas,
            upscale_delay_s=settings.upscale_delay_s,
            downscale_delay_s=settings.downscale_delay_s,
            look_back_period_s=settings.look_back_s,
            policy=policy,
        ),
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
        graceful_shutdown_timeout_s=settings.drain_seconds + _ENDING_SECONDS,
        graceful_shutdown_wait_loop_s=1.0,
    )
    ingress = serve.deployment(
        Ingress,
        name="Ingress",
        num_replicas=settings.ingress_replicas,
        ray_actor_options={"num_cpus": 0, "resources": settings.ingress_resources},
        # The ingress only waits for replicas, which bound their own requests.
        max_ongoing_requests=settings.max_requests * settings.max_replicas + 1024,
    )
    return ingress.bind(replicas.bind(settings), settings.retry_seconds)
