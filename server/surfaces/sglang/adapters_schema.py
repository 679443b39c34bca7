"""The bodies of POST /load_lora_adapter and /unload_lora_adapter, in SGLang's formats, and their answer."""

from __future__ import annotations

from typing import Annotated

from numaserve.server.http.fields.types import Neutral, ShortText, Strict, Text, Unused, neutral
from pydantic import BaseModel, StringConstraints

_Name = Annotated[ShortText, StringConstraints(min_length=1)]


class SGLangLoadLoraRequest(Strict):
    """The LoRA adapter to load."""

    lora_name: _Name
    """Name of the adapter, which requests use as their model or as `lora_path`."""
    lora_path: Annotated[Text, StringConstraints(min_length=1, max_length=4096)]
    """Path of a PEFT folder or a .gguf file below `--lora-root`: absolute, or relative to that folder."""
    model: ShortText | None = None
    """Name of the served model, for a gateway to several models. Default: the gateway's default model."""
    pinned: bool | None = None
    """No effect: every loaded adapter stays in memory until it is unloaded."""
    added_tokens_config: Annotated[Neutral, neutral({})] = None
    lora_id: Unused = None


class SGLangUnloadLoraRequest(Strict):
    """The LoRA adapter to unload."""

    lora_name: _Name
    """Name of the adapter."""
    model: ShortText | None = None
    """Name of the served model, for a gateway to several models. Default: the gateway's default model."""
    lora_id: Unused = None


class SGLangLoras(BaseModel):
    """The result of a load or an unload, and the paths of the loaded adapters by name. `matrices` is the number of
    matrices that a loaded adapter changes."""

    success: bool
    error_message: str
    loaded_adapters: dict[str, str]
    matrices: int | None = None
