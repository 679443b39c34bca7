"""Random checkpoints of recurrent hybrids, in files of llama.cpp's own converter.

The reference is transformers in fp32 on the values of the file: matrices are rounded before they are converted.
"""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import gguf
import numpy as np
import torch
import transformers as hf
from numaserve.workers.interface.settings import AS_PUBLISHED

from tests.engines.comparison import cells, further, llama_scores, print_heads
from tests.support import checkpoints, kimi
from tests.support.families import row
from tests.support.llama_cpp import llama_cpp_files
from tests.support.parity import POSITIONS, RANDOM_TEXTS, served_scores, transformers_scores

CONVERTER = Path(__file__).with_name("convert.py")
KINDS = ("BF16", "Q8_0")
# llama.cpp has states of equal sides, and blocks of 32 columns.
_DELTA = {
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
_EXPERTS = {
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 96,
    "num_experts": 7,
    "num_experts_per_tok": 3,
}
_SIZES = checkpoints.sizes(128, 4, 2, 160, layers=4, head_dim=64) | _DELTA
_ROUTED = {"num_local_experts": 7, "num_experts_per_tok": 3}
# llama.cpp has as many heads in Kimi's recurrent layers as in its other layers, and one group of experts.
_KIMI = checkpoints.sizes(128, 4, 4, 160, layers=4, linear_num_heads=4, linear_head_dim=32, kv_lora_rank=64) | _ROUTED
_GRANITE = checkpoints.sizes(128, 4, 2, 64, layers=4, shared_intermediate_size=96) | row.GRANITE | _ROUTED
_NEMOTRON = checkpoints.sizes(128, 4, 2, 96, layers=6, head_dim=32, mamba_num_heads=8, mamba_head_dim=32)
# The embedding, what decides how fast states decay, and other narrow projections of Kimi.
_EXPANDED = (
    "embed_tokens.weight",
    "embeddings.weight",
    "in_proj_a.weight",
    "in_proj_b.weight",
    "in_proj_ba.weight",
    "self_attn.b_proj.weight",
    "f_a_proj.weight",
    "f_b_proj.weight",
    "g_a_proj.weight",
    "kv_b_proj.weight",
)
_MAMBA = ("mamba.in_proj.weight", "mixer.in_proj.weight")  # the last rows make steps, one for each head
# A part of a difference. What is not simulated, such as roundings within attention, makes one percent. That can be more
# than two standard errors, as most roundings are the same.
_ALIKE = 0.05
_BLOCK = 32  # columns
_GATES = ("gate.weight", "router.weight")
MODELS: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "Qwen3-Next": lambda: hf.Qwen3NextConfig(**_SIZES, **_EXPERTS),
    "Qwen3.5": lambda: hf.Qwen3_5TextConfig(**_SIZES),
    "Qwen3.5 MoE": lambda: hf.Qwen3_5MoeTextConfig(**_SIZES, **_EXPERTS),
    "Kimi Linear": lambda: hf.KimiLinearConfig(
        **_KIMI | row.LATENT_HEADS,
        layer_types=["linear_attention"] * 3 + ["full_attention"],
        mlp_layer_types=["dense"] + ["sparse"] * 3,
        moe_intermediate_size=64,
    ),
    "LFM2": lambda: hf.Lfm2Config(
        **checkpoints.sizes(128, 4, 2, 192, layers=4),
        layer_types=["conv", "conv", "full_attention", "conv"],
        block_auto_adjust_ff_dim=False,
    ),
    "Granite 4 H": lambda: hf.GraniteMoeHybridConfig(
        **_GRANITE, layer_types=["mamba", "mamba", "attention", "mamba"], mamba_n_heads=8, mamba_d_state=32
    ),
    "Nemotron-H": lambda: hf.NemotronHConfig(
        **_NEMOTRON,
        layers_block_type=["mamba", "moe", "mamba", "attention", "mamba", "moe"],
        ssm_state_size=32,
        n_groups=2,
        n_routed_experts=7,
        num_experts_per_tok=3,
        moe_intermediate_size=64,
        moe_shared_expert_intermediate_size=96,
    ),
}


def compare_hybrids(python: Path, place: Path) -> bool:
    """Print a table; whether numaserve is further away on some file. `place` keeps the converter."""
    converter = llama_cpp_files(place, "conversion/", "gguf-py/")
    heads = ("random model", "file", "llama.cpp", "top-1", "numaserve", "top-1", "numaserve's over it")
    print_heads(*heads, "transformers, rounding", "top-1", "numaserve's over it")
    is_further = False
    for name, config in MODELS.items():
        for kind in KINDS:
            model = checkpoints.build(config())
            _round_matrices(model, gguf.GGMLQuantizationType[kind])
            with tempfile.TemporaryDirectory() as folder:
                path = _converted(model, Path(folder), converter, kind)
                print(f"| {name} | {kind} | ", end="")
                is_further |= _compare(python, path, model)
    return is_further


def _compare(python: Path, path: Path, model: hf.PreTrainedModel) -> bool:
    """Print the rest of a row; whether numaserve is further away than what rounds as it does.

    llama.cpp is no bound: it rounds neither inputs of routers nor those of the gates of shared experts, so it chooses
    other experts less often.
    """
    texts = np.random.default_rng(0).integers(3, checkpoints.VOCAB, (RANDOM_TEXTS, POSITIONS + 1)).tolist()
    reference = transformers_scores(model, texts)
    with _roundings(model):
        rounded = transformers_scores(model, texts)
    theirs, ours = llama_scores(python, path, texts), served_scores(path, 1, texts, AS_PUBLISHED)
    row = [cells(theirs, reference), cells(ours, reference)]
    more, error = further(ours, theirs, reference)
    row += [f"{1 + more:.2f} ± {error:.2f}", cells(rounded, reference)]
    more, error = further(ours, rounded, reference)
    print(f"{' | '.join(row)} | {1 + more:.2f} ± {error:.2f} |", flush=True)
    return more > max(2 * error, _ALIKE)


@contextlib.contextmanager
def _roundings(model: hf.PreTrainedModel) -> Iterator[None]:
    """Round what numaserve does to bf16: inputs of products with weights and, for good, what it expands of a file."""
    for name, parameter in model.named_parameters():
        if name.endswith(_EXPANDED):
            parameter.data = parameter.data.bfloat16().float()
        elif name.endswith(_MAMBA):
            steps = parameter.data[-model.get_parameter(name.replace("in_proj.weight", "dt_bias")).shape[0] :]
            steps.copy_(steps.bfloat16())
    linear = torch.nn.functional.linear
    model.set_experts_implementation("eager")  # others have products of their own

    def rounded(inputs: torch.Tensor, *others: torch.Tensor | None) -> torch.Tensor:
        return linear(inputs.bfloat16().float(), *others)

    with mock.patch.object(torch.nn.functional, "linear", rounded):
        yield


def _round_matrices(model: hf.PreTrainedModel, kind: gguf.GGMLQuantizationType) -> None:
    """Round what files of this kind hold in its blocks: not short convolutions, nor gates of experts."""
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and parameter.shape[-1] % _BLOCK == 0 and not name.endswith(_GATES):
            for values in _in_file(model.config, name, parameter.data):
                blocks = gguf.quants.quantize(values.numpy().reshape(-1, values.shape[-1]), kind)
                values.copy_(torch.from_numpy(gguf.quants.dequantize(blocks, kind)).reshape(values.shape))


def _in_file(config: hf.PreTrainedConfig, name: str, values: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield views of a parameter whose rows are rows of the file, which has the keys of latents transposed."""
    if not name.endswith("kv_b_proj.weight"):
        yield values
        return
    of_heads = values.unflatten(0, (config.num_attention_heads, -1))
    yield of_heads[:, : config.qk_nope_head_dim].mT
    yield of_heads[:, config.qk_nope_head_dim :]


def _converted(model: hf.PreTrainedModel, folder: Path, converter: Path, kind: str) -> Path:
    checkpoint, path = folder / "checkpoint", folder / "model.gguf"
    model.save_pretrained(checkpoint)  # in fp32: bf16 does not represent what Q8_0 does
    _publish(checkpoint, model.config.model_type)
    command = [sys.executable, CONVERTER, converter, checkpoint, kind, path]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return path


def _publish(checkpoint: Path, model_type: str) -> None:
    """Give a saved checkpoint the names that published checkpoints have, where the converter knows these alone."""
    if model_type == "kimi_linear":
        kimi.publish_linear(checkpoint)
    elif model_type == "granitemoehybrid":
        config = checkpoint / "config.json"
        kinds = config.read_text().replace('"linear_attention"', '"mamba"').replace('"full_attention"', '"attention"')
        config.write_text(kinds)
