"""Messages about low-rank adapters (LoRA; Hu et al., 2021)."""

from __future__ import annotations

import msgspec

NO_ADAPTER = 0  # number of the adapter of a sequence without one


class LoraAdapter(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An adapter of the served model, in its place on every rank."""

    number: int  # of its place, from 1 to `ModelSettings.max_loras`
    path: str  # a folder as PEFT writes it, or a .gguf file
    digest: str  # SHA-256 of its files, in hexadecimal digits: a rank refuses other contents


class LoadAdapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="load_adapter"):
    """Asks a rank to load an adapter between two plans, in place of the one that has its number.

    The front end plans no sequence with this number from before it sends the message until every rank has answered.
    """

    request_id: int
    adapter: LoraAdapter


class AdapterLoaded(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="adapter_loaded"):
    """The answer of a rank to `LoadAdapter`. With a `problem`, the place of that number holds no adapter."""

    rank: int
    request_id: int
    matrices: int  # that the adapter changes, of the whole model
    problem: str = ""
