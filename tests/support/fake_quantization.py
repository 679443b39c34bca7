"""Quantized arithmetic played in transformers: values rounded to what the format can hold, sums in fp32."""

from collections.abc import Callable

import torch
import transformers as hf
from numaserve.workers.interface.settings import WeightFormats

Rounding = Callable[[torch.Tensor], torch.Tensor]

_INT8_MAX = 127


def rounded_to_int8(x: torch.Tensor) -> torch.Tensor:
    """Each row of the last dimension as whole multiples of its largest magnitude / 127."""
    peak = x.abs().amax(-1, keepdim=True)
    factor = torch.where(peak > 0, _INT8_MAX / peak, torch.zeros_like(peak))
    return torch.round(x * factor) * (peak / _INT8_MAX)


def rounded_to_int4(x: torch.Tensor) -> torch.Tensor:
    """Groups of 32 as whole multiples, -8 to 7, of an eighth of their extreme value, with its sign; scales in fp16."""
    groups = _groups(x, 32)
    extreme = torch.gather(groups, -1, groups.abs().argmax(-1, keepdim=True))
    scale = (extreme / -8).half().float()
    codes = torch.where(scale != 0, torch.round(groups / scale), torch.zeros_like(groups)).clamp(-8, 7)
    return _ungrouped(codes * scale, x)


def rounded_to_fp8(x: torch.Tensor) -> torch.Tensor:
    """Groups of 128 as e4m3 values times their largest magnitude / 448."""
    groups = _groups(x, 128)
    scale = groups.abs().amax(-1, keepdim=True) / 448
    codes = torch.where(scale != 0, groups / scale, torch.zeros_like(groups)).clamp(-448, 448)
    return _ungrouped(codes.to(torch.float8_e4m3fn).float() * scale, x)


def rounded_to_int8_groups(x: torch.Tensor) -> torch.Tensor:
    """Groups of 128 as whole multiples of their largest magnitude / 127; scales in fp16."""
    groups = _groups(x, 128)
    scale = (groups.abs().amax(-1, keepdim=True) / _INT8_MAX).half().float()
    return _ungrouped(torch.where(scale != 0, torch.round(groups / scale), torch.zeros_like(groups)) * scale, x)


def _groups(x: torch.Tensor, size: int) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % size)).unflatten(-1, (-1, size))


def _ungrouped(groups: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return groups.flatten(-2)[..., : like.shape[-1]]


def _int8_in_groups(x: torch.Tensor, size: int = 32) -> torch.Tensor:
    return _ungrouped(rounded_to_int8(_groups(x, size)), x)


def _unchanged(x: torch.Tensor) -> torch.Tensor:
    return x


# What is done to the weights and to the activations.
_ROUNDING: dict[str, tuple[Rounding, Rounding]] = {
    "int8": (rounded_to_int8, rounded_to_int8),
    "int4": (rounded_to_int4, _int8_in_groups),
    "fp8": (rounded_to_fp8, _unchanged),
}


def play(model: hf.PreTrainedModel, formats: WeightFormats) -> hf.PreTrainedModel:
    """Give the layers of an fp32 model weights and inputs as a format of `--quantization` has them. The output head
    stays as it is."""
    round_weight, round_input = _ROUNDING[str(formats.linear)]
    if formats.linear == "int4" and formats.activations != "int8":
        round_input = _unchanged
    for name, layer in model.named_modules():
        if name.endswith("kv_b_proj"):
            _round_absorbed(layer, model.config.qk_nope_head_dim, model.config.v_head_dim)
        elif steps := _steps_of(model, name):
            _round_but_steps(layer, steps, round_weight, round_input)
        elif _is_linear(name, layer) and "lm_head" not in name:
            layer.weight.data = round_weight(layer.weight.data)
            _round_inputs(layer, round_input)
        elif name.endswith(_EXPERTS):
            for weights in (_first_of(layer), layer.down_proj):
                weights.data = _upright(layer, round_weight(_upright(layer, weights.data).contiguous()))
            _round_inputs_of_experts(layer, round_input)
    return model


def play_inputs(model: hf.PreTrainedModel, group: int, *, head: bool) -> hf.PreTrainedModel:
    """Give the layers of an fp32 model, and its output head, inputs in int8, with a scale for each token and `group` of
    columns, or for each token where it is 0."""

    def round_input(x: torch.Tensor) -> torch.Tensor:
        return _int8_in_groups(x, group) if group else rounded_to_int8(x)

    for name, layer in model.named_modules():
        if _is_linear(name, layer) and (head or "lm_head" not in name):
            _round_inputs(layer, round_input)
        elif name.endswith(_EXPERTS):
            _round_inputs_of_experts(layer, round_input)
    return model


_EXPERTS = ".experts"  # one module that holds the weights of all, [experts, out features, in features]


def _is_gpt_oss(experts: torch.nn.Module) -> bool:
    """Whose weights are [experts, in features, out features], with biases."""
    return hasattr(experts, "gate_up_proj_bias")


def _first_of(experts: torch.nn.Module) -> torch.Tensor:
    """Return the weights of the first product: gates and inputs, or inputs alone."""
    return experts.gate_up_proj if hasattr(experts, "gate_up_proj") else experts.up_proj


def _is_llama4(experts: torch.nn.Module) -> bool:
    """Whether these are Llama 4's experts. Their weights lie like gpt-oss's.

    Each expert gets a copy of each token's row, times its weight.
    """
    return type(experts).__name__ == "Llama4TextExperts"


def _upright(experts: torch.nn.Module, weights: torch.Tensor) -> torch.Tensor:
    """[..., out features, in features], or what was that as the module has it."""
    return weights.transpose(-2, -1) if _is_gpt_oss(experts) or _is_llama4(experts) else weights


def _is_linear(name: str, layer: torch.nn.Module) -> bool:
    """Routers are modules of another kind, but for the shared expert's gate. What expands latents is absorbed. The
    gates of delta networks stay bf16."""
    others = ("shared_expert_gate", "kv_b_proj", ".router", "router.proj", ".in_proj_a", ".in_proj_b", ".in_proj_ba")
    kimi = (".b_proj", ".f_a_proj", ".f_b_proj", ".g_a_proj")
    return isinstance(layer, torch.nn.Linear) and not name.endswith((*others, *kimi))


def _round_absorbed(layer: torch.nn.Linear, nope: int, value: int) -> None:
    """In 8 bits whatever the others have, each half along what it is multiplied by: keys are turned, for queries."""
    keys, values = layer.weight.data.unflatten(0, (-1, nope + value)).split([nope, value], 1)
    kept = [rounded_to_int8_groups(keys.mT).mT, rounded_to_int8_groups(values)]
    layer.weight.data = torch.cat(kept, 1).flatten(0, 1)


def _steps_of(model: hf.PreTrainedModel, name: str) -> int:
    """Return the number of the last rows of a state space's input projection that stay bf16; 0 for another layer."""
    mixer, _, projection = name.rpartition(".")
    return len(model.get_submodule(mixer).A_log) if projection == "in_proj" and "conv" not in mixer else 0


def _round_but_steps(layer: torch.nn.Linear, steps: int, round_weight: Rounding, round_input: Rounding) -> None:
    rounded, plain = round_weight(layer.weight.data[:-steps].contiguous()), layer.weight.data[-steps:]

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = x.bfloat16().float()
        of_rounded = torch.nn.functional.linear(round_input(x), rounded)
        return torch.cat([of_rounded, torch.nn.functional.linear(x, plain)], -1)

    layer.forward = forward  # type: ignore[method-assign]


def _round_inputs(layer: torch.nn.Linear, rounding: Rounding) -> None:
    def rounded(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (rounding(inputs[0].bfloat16().float()), *inputs[1:])

    layer.register_forward_pre_hook(rounded)


def _round_inputs_of_experts(experts: torch.nn.Module, rounding: Rounding) -> None:
    """What goes into the second product does not show outside of transformers' code: this is in place of it."""

    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(rounding(x.bfloat16().float()), weight)

    def expert(x: torch.Tensor, index: int) -> torch.Tensor:
        gate_up, down = (_upright(experts, each[index]) for each in (_first_of(experts), experts.down_proj))
        if _is_gpt_oss(experts):
            hidden = experts._apply_gate(product(x, gate_up) + experts.gate_up_proj_bias[index])
            return product(hidden, down) + experts.down_proj_bias[index]
        if not hasattr(experts, "gate_up_proj"):
            return product(experts.act_fn(product(x, gate_up)), down)
        gate, up = product(x, gate_up).chunk(2, -1)
        return product(experts.act_fn(gate) * up, down)

    def forward_all(rows: torch.Tensor) -> torch.Tensor:
        by_expert = rows.unflatten(0, (len(experts.gate_up_proj), -1))
        return torch.cat([expert(x, index) for index, x in enumerate(by_expert)])

    def forward(x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for index in range(len(experts.down_proj)):
            token, place = torch.where(chosen == index)
            out.index_add_(0, token, expert(x[token], index) * shares[token, place, None])
        return out

    experts.forward = forward_all if _is_llama4(experts) else forward  # type: ignore[assignment]
