"""The settings that a model is served with. Each setting is defined here, and named again only where it takes effect.

A field with an `Option` is an option of that name: a key of the configuration, and an option of the commands that plan,
measure or serve a model, with the field's type and default (server/config/model_options.py,
server/cli/config_options.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

WeightFormat = Literal["bf16", "int8", "int4", "int8_group", "fp8"]
Quantization = Literal["int8", "int4", "fp8", "bf16"]
ActivationDtype = Literal["int8", "bf16"]
ActivationChoice = Literal["auto", ActivationDtype]
KvCacheDtype = Literal["bf16", "int8", "fp8_e4m3"]
Backend = Literal["native", "reference"]


@dataclass(frozen=True)
class Option:
    """The properties of an option besides its name, type and default."""

    description: str  # a line of help
    at_least: int | None = None
    at_most: int | None = None
    needs: str | None = None  # another option that must be set together with this one
    packed: bool = True  # whether the value may affect the bytes of packed weights


class WeightFormats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The formats of stored weights; None: the checkpoint's format. The embedding is always bf16.

    `activations`: the data type of the activations that grouped weights of 4 or 8 bits are multiplied by. int8 has a
    scale for each token and group; bf16 uses such weights at their exact values; auto is the data type of the engine
    that the format of the weights comes from (workers/layers/stored.py).

    `int8_activations`: with auto, the formats whose activations are int8 where the server quantizes the weights. They
    follow from the instruction set (workers/planning/activations.py).
    """

    linear: WeightFormat | None = None
    lm_head: WeightFormat | None = None
    activations: ActivationChoice = "auto"
    int8_activations: tuple[WeightFormat, ...] = ()


AS_PUBLISHED = WeightFormats()
BF16_WEIGHTS = WeightFormats("bf16", "bf16")


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings with which every rank serves the model. `formats` follows from the options in `WeightOptions`,
    `pooled` from the server's task."""

    formats: WeightFormats = AS_PUBLISHED
    kv_cache_dtype: Annotated[
        KvCacheDtype,
        Option(
            "Data type of cached keys and values: `bf16`, or `int8` or `fp8_e4m3`, which take half the memory.",
            packed=False,
        ),
    ] = "bf16"
    expert_parallel: Annotated[
        bool,
        Option(
            "With two or more ranks, divide the experts among the ranks. Each rank then holds whole experts. "
            "Otherwise each rank holds some columns of every expert."
        ),
    ] = False
    context_parallel_from: Annotated[
        int | None,
        Option(
            "Minimum context length for dividing the latents of a DeepSeek sequence among the ranks. For N new tokens "
            "in one step, the minimum is N times as long. Below it, every rank reads all latents. Default: automatic.",
            at_least=1,
            packed=False,
        ),
    ] = None
    mmproj: Annotated[
        str | None,
        Option(
            "Vision tower of a GGUF model, a file as llama.cpp's converter writes it. Default: the file next to the "
            "model whose name begins with `mmproj`, if there is one for this model.",
            packed=False,  # the file itself is a part of the checkpoint's digest
        ),
    ] = None

    max_loras: Annotated[
        int,
        Option(
            "Number of LoRA adapters that have memory, which every rank allocates when it starts. `0`: the number of "
            "adapters that `--lora` names.",
            at_least=0,
            packed=False,
        ),
    ] = 0
    max_lora_rank: Annotated[
        int,
        Option("Largest rank of a LoRA adapter. Memory for adapters is proportional to it.", at_least=1, packed=False),
    ] = 16

    max_image_pixels: Annotated[
        int,
        Option(
            "Maximum pixels of an image after resizing. The tile of the whole image is not counted. The image "
            "processor of the model resizes images to fewer pixels where its own limit is lower.",
            at_least=1,
            at_most=1 << 28,
            packed=False,
        ),
    ] = 1 << 20

    pooled: bool = False  # loaded without an output head, to return hidden states in place of tokens
    mtp: bool = False  # loaded with the predictor layer (token after the next), where the checkpoint has one
    stage: int = 0  # loaded with the blocks of this pipeline stage alone
    stages: int = 1

    def of_weights(self) -> ModelSettings:
        """Return these settings with the default of every field that does not affect the packed weights."""
        unseen = {each.name: each.default for each in _options(ModelSettings).values() if not each.option.packed}
        return msgspec.structs.replace(self, **unseen)


class WeightOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's options about the formats of weights."""

    quantization: Annotated[
        Quantization | None,
        Option(
            "Quantize the weights of an unquantized checkpoint to `int8`, `int4` or `fp8`. `bf16` converts the "
            "weights of a quantized checkpoint to bf16. The embedding is always bf16."
        ),
    ] = None
    quantize_lm_head: Annotated[
        bool, Option("Quantize the output head too, to the format of `quantization`.", needs="quantization")
    ] = False
    activation_dtype: Annotated[
        ActivationChoice,
        Option(
            "Data type of the activations that grouped 4-bit and 8-bit weights are multiplied by: `bf16`, or "
            "`int8`, which quantizes activations per token and group. `auto`: `int8` for the block formats of GGUF "
            "files except Q8_0 and MXFP4, and for `--quantization int4` where `int8` is measured to be faster. "
            "`bf16` for all other formats."
        ),
    ] = "auto"

    def formats(self) -> WeightFormats:
        """Return the requested formats."""
        with_head = self.quantize_lm_head or self.quantization == "bf16"
        return WeightFormats(self.quantization, self.quantization if with_head else None, self.activation_dtype)


@dataclass(frozen=True)
class ModelOption:
    """An option with the properties of its field; `type` is the type of its values."""

    name: str
    type: Any
    default: Any
    option: Option


def _options(struct: type[msgspec.Struct]) -> dict[str, ModelOption]:
    annotated = ((each, get_args(each.type)) for each in msgspec.structs.fields(struct))
    return {
        each.name: ModelOption(each.name, arguments[0], each.default, arguments[1])
        for each, arguments in annotated
        if get_origin(each.type) is Annotated
    }


MODEL_OPTIONS: Mapping[str, ModelOption] = _options(WeightOptions) | _options(ModelSettings)  # by name
DEFAULT_SETTINGS = ModelSettings()


def settings_of(options: Mapping[str, Any]) -> ModelSettings:
    """Return the settings for the values of all `MODEL_OPTIONS`, by name."""
    of_weights = {name: options[name] for name in WeightOptions.__struct_fields__}
    others = {name: value for name, value in options.items() if name not in of_weights}
    return ModelSettings(formats=WeightOptions(**of_weights).formats(), **others)
