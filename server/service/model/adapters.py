"""The LoRA adapters of the served model, checked before any weight is read."""

from collections.abc import Collection
from functools import partial

from numaserve.server.adapters.adapters import Adapters
from numaserve.server.config.lora_modules import LoraModule
from numaserve.server.config.serve import ServeConfig
from numaserve.workers.adapters.describe import describe_adapter
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.spec import ModelConfig


def find_adapters(
    config: ServeConfig, names: Collection[str], model: ModelConfig, settings: ModelSettings
) -> Adapters | None:
    """Return the adapters of a model that is served under `names`; None without memory for any.

    Raises `OperatorError` for an adapter of the start that the model cannot be served with, and for `lora_root` if it
    is no folder or no adapter has memory.
    """
    if config.lora_root is not None:
        if not config.lora_places:
            raise OperatorError(
                "--lora-root has no effect without memory for adapters: set --max-loras, or leave --lora-root out"
            )
        if not config.lora_root.is_dir():
            raise OperatorError(f"--lora-root {config.lora_root} is not a folder: name the folder of the adapters")
    if not config.lora_places:
        return None
    describe = partial(describe_adapter, config=model, settings=settings)
    adapters = Adapters(config.lora_places, describe, reserved=names)
    # A shell expands no ~ after NAME=.
    adapters.name_at_start(LoraModule(name, path.expanduser().absolute()) for name, path in config.lora or ())
    return adapters
