"""The bodies of POST /v1/load_lora_adapter and /v1/unload_lora_adapter, in vLLM's formats."""

from __future__ import annotations

from typing import Annotated

from numaserve.server.http.fields.types import Neutral, ShortText, Strict, Text, Unused, neutral
from pydantic import StringConstraints

AdapterName = Annotated[ShortText, StringConstraints(min_length=1)]
AdapterPath = Annotated[Text, StringConstraints(min_length=1, max_length=4096)]


class LoadLoraRequest(Strict):
    """The LoRA adapter to load."""

    lora_name: AdapterName
    """Name of the adapter, which requests use as their model."""
    lora_path: AdapterPath
    """Path of a PEFT folder or a .gguf file below `--lora-root`: absolute, or relative to that folder."""
    load_inplace: bool | None = None
    """Replace a loaded adapter of that name. Requests that use the earlier adapter end with it."""
    model: ShortText | None = None
    """Name of the served model, for a gateway to several models. Default: the gateway's default model."""
    is_3d_lora_weight: Annotated[Neutral, neutral(False)] = None


class UnloadLoraRequest(Strict):
    """The LoRA adapter to unload."""

    lora_name: AdapterName
    """Name of the adapter."""
    model: ShortText | None = None
    """Name of the served model, for a gateway to several models. Default: the gateway's default model."""
    lora_int_id: Unused = None
