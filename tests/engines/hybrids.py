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
from tests.support import checkpoints
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
# The embedding, and what decides how fast states decay.
_EXPANDED = ("embed_tokens.weight", "in_proj_a.weight", "in_proj_b.weight", "in_proj_ba.weight")
# A part of a difference. What is not simulated, such as roundings within attention, makes one percent. That can be more
# than two standard errors, as most roundings are the same.
_ALIKE = 0.05
MODELS: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "Qwen3-Next": lambda: hf.Qwen3NextConfig(**_SIZES, **_EXPERTS),
    "Qwen3.5": lambda: hf.Qwen3_5TextConfig(**_SIZES),
    "Qwen3.5 MoE": lambda: hf.Qwen3_5MoeTextConfig(**_SIZES, **_EXPERTS),
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
    linear = torch.nn.functional.linear
    model.set_experts_implementation("eager")  # others have products of their own

    def rounded(inputs: torch.Tensor, *others: torch.Tensor | None) -> torch.Tensor:
        return linear(inputs.bfloat16().float(), *others)

    with mock.patch.object(torch.nn.functional, "linear", rounded):
        yield


def _round_matrices(model: hf.PreTrainedModel, kind: gguf.GGMLQuantizationType) -> None:
    """Round what files of this kind hold in its blocks: not short convolutions, nor gates of experts."""
    for name, parameter in model.named_parameters():
        columns = parameter.shape[-1]
        if parameter.ndim > 1 and not name.endswith(("gate.weight", "conv1d.weight")):
            blocks = gguf.quants.quantize(parameter.data.numpy().reshape(-1, columns), kind)
            parameter.data = torch.from_numpy(gguf.quants.dequantize(blocks, kind)).reshape(parameter.shape)


def _converted(model: hf.PreTrainedModel, folder: Path, converter: Path, kind: str) -> Path:
    model.save_pretrained(folder / "checkpoint")  # in fp32: bf16 does not represent what Q8_0 does
    path = folder / "model.gguf"
    command = [sys.executable, CONVERTER, converter, folder / "checkpoint", kind, path]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return path
