"""Quantised arithmetic played in transformers: values rounded to what the format can hold, sums in fp32."""

from __future__ import annotations

import torch
import transformers as hf

_INT8_MAX = 127


def rounded_to_int8(x: torch.Tensor) -> torch.Tensor:
    """Each row of the last dimension as whole multiples of its largest magnitude / 127."""
    peak = x.abs().amax(-1, keepdim=True)
    factor = torch.where(peak > 0, _INT8_MAX / peak, torch.zeros_like(peak))
    return torch.round(x * factor) * (peak / _INT8_MAX)


def play_int8(model: hf.PreTrainedModel) -> hf.PreTrainedModel:
    """Give the layers of an fp32 model int8 weights, a scale for each output feature, and int8 inputs, a scale for each
    token. The output head stays as it is."""

    def rounded_input(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (rounded_to_int8(inputs[0].bfloat16().float()), *inputs[1:])

    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and "lm_head" not in name:
            layer.weight.data = rounded_to_int8(layer.weight.data)
            layer.register_forward_pre_hook(rounded_input)
    return model
