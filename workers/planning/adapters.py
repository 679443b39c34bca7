"""The memory of LoRA adapters, which every rank allocates when it starts."""

from numaserve.workers.layers.partition import Partition
from numaserve.workers.planning.needs import format_bytes


def adapter_notes(partition: Partition) -> tuple[str, ...]:
    """Return a sentence for the operator about the adapters of a model, if it has memory for some."""
    settings = partition.settings
    if not settings.max_loras:
        return ()
    total = sum(part.adapter_bytes() for part in partition.ranks)
    return (
        f"the weights include {format_bytes(total)} for LoRA adapters: {settings.max_loras} of at most rank "
        f"{settings.max_lora_rank}, {format_bytes(total // settings.max_loras)} each",
    )
