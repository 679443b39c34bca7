"""What a model family is: the shape that every file of this package fills in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from numaserve.workers.models.fields import Fields
from numaserve.workers.models.spec import ModelConfig

if TYPE_CHECKING:
    # The front end reads configurations and must not need the native modules for it.
    from numaserve.workers.program import ProgramBuilder
    from numaserve.workers.weights.weights import Weights


@dataclass(frozen=True)
class LayerNames:
    """Hugging Face's tensor names within a layer, without `.weight` and `.bias`.

    Where several have the same name, that tensor holds them below each other in the order of these fields.
    """

    input_norm: str = "input_layernorm"
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    o: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    mlp_norm: str = "post_attention_layernorm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    post_attention_norm: str = ""  # "": the family has none
    post_mlp_norm: str = ""


@dataclass(frozen=True)
class Family:
    """One model family.

    `configure(fields, architecture)` maps config.json; `forward(builder, config, weights)` appends the forward pass to
    a program.
    """

    name: str
    architectures: tuple[str, ...]
    gguf_architecture: str | None  # general.architecture; None: its GGUF files have another name
    configure: Callable[[Fields, str], ModelConfig]
    forward: Callable[[ProgramBuilder, ModelConfig, Weights], None]
    names: LayerNames = field(default_factory=LayerNames)
    # What may stand before `layers.0. ...`: multimodal checkpoints nest their language model.
    prefixes: tuple[str, ...] = ("model.",)
    # Parts of a multimodal checkpoint that text does not need.
    ignored_prefixes: tuple[str, ...] = ()
