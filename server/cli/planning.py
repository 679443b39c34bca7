"""From the server's configuration to what the planner asks for."""

from __future__ import annotations

from pathlib import Path

from numaserve.server.config import ServeConfig
from numaserve.workers.plan import PlanOptions
from numaserve.workers.protocol import WeightFormats


def plan_options(config: ServeConfig, model: Path) -> PlanOptions:
    """The part of the configuration that decides on cores and memory."""
    return PlanOptions(
        model=str(model),
        max_running_requests=config.max_running_requests,
        max_step_tokens=config.chunked_prefill_size,
        mem_fraction_static=config.mem_fraction_static,
        step_deadline_s=config.step_deadline_seconds,
        tp=config.tp,
        threads_per_worker=config.threads_per_worker,
        reserve_core=config.reserve_core,
        context_length=config.context_length,
        kv_cache_gib=config.kv_cache_gib,
        formats=WeightFormats(
            linear=config.quantization or "bf16",
            lm_head=(config.quantization if config.quantize_lm_head else None) or "bf16",
        ),
    )
