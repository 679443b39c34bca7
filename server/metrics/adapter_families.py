"""The metrics that only servers with memory for LoRA adapters have."""

import time
from collections.abc import Sequence

from numaserve.server.metrics.series import Series
from prometheus_client import CollectorRegistry, Gauge


class AdapterFamilies:
    """Counts of adapters, and of their requests. A series by adapter lasts until the adapter is unloaded."""

    def __init__(self, series: Series, registry: CollectorRegistry) -> None:
        self.loaded = series.one(Gauge, "numaserve_lora_adapters", "LoRA adapters that requests can use.")
        self.places = series.one(
            Gauge, "numaserve_lora_places", "LoRA adapters that have memory, loaded or not (--max-loras)."
        )
        self.requests = series.removable(
            "numaserve_lora_requests_total", "Ended sequences of a LoRA adapter.", "adapter"
        )
        self.prompt_tokens = series.removable(
            "numaserve_lora_prompt_tokens_total",
            "Prompt tokens of a LoRA adapter's ended sequences.",
            "adapter",
        )
        self.generation_tokens = series.removable(
            "numaserve_lora_generation_tokens_total",
            "Generated tokens of a LoRA adapter's ended sequences.",
            "adapter",
        )
        # Without `model_name`, as in vLLM. Gateways that route by adapters read it.
        self._info = Gauge(
            "vllm:lora_requests_info",
            "Labels: number of LoRA adapters that have memory, names of the loaded adapters, and no waiting adapters. "
            "The value is the time of the last change, in seconds since 1970.",
            ("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
            registry=registry,
        )

    def describe(self, names: Sequence[str], places: int) -> None:
        """Set the loaded adapters and the number of places."""
        self.loaded.set(len(names))
        self.places.set(places)
        for name in names:  # a rate needs the 0 too
            self.requests.series(name)
            self.prompt_tokens.series(name)
            self.generation_tokens.series(name)
        self._info.clear()
        self._info.labels(str(places), ",".join(names), "").set(time.time())

    def remove(self, name: str) -> None:
        """Remove the series of an adapter."""
        for each in (self.requests, self.prompt_tokens, self.generation_tokens):
            each.remove(name)
