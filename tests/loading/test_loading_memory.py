"""Loading streams: beside what is packed there is never more than a few tensors of the checkpoint in memory.

A process of its own loads a checkpoint whose experts are large beside everything else; the kernel keeps its peak.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from numaserve.workers.layers.names import TensorNames
from numaserve.workers.mapped import RELEASE_BYTES
from numaserve.workers.models.load import load_model_config
from numaserve.workers.weights.tensors import expected_tensors

from tests.support.published import LAYOUTS

HIDDEN, EXPERTS, WIDTH, VOCAB = 1024, 8, 4096, 512
CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 1024,
    "moe_intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 256,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 64,
}
TENSOR_BYTES = 2 * HIDDEN * WIDTH
SLACK = 8 << 20  # allocators, and pages that lie around what is touched
BYTES = {"bf16": 2, "f16": 2, "f32": 4, "i8": 1, "i32": 4, "i64": 8, "e4m3": 1}
NAMES = {"bf16": "BF16", "f16": "F16", "f32": "F32", "i8": "I8", "i32": "I32", "i64": "I64", "e4m3": "F8_E4M3"}

LOAD = """
import json, os, sys
from pathlib import Path
from numaserve.kernels import Team
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.interface.settings import ModelSettings, WeightFormats
from numaserve.workers import mapped
from numaserve.workers.weights import loader
from numaserve.workers.weights.checkpoint import open_source

def kib(field):
    line = next(each for each in open("/proc/self/status") if each.startswith(field + ":"))
    return int(line.split()[1])

path, format, mapped.RELEASE_BYTES = Path(sys.argv[1]), sys.argv[2] or None, int(sys.argv[3])
config = load_model_config(path)
team = Team([min(os.sched_getaffinity(0))])
part = config.partition([1], ModelSettings(formats=WeightFormats(format))).ranks[0]
before = kib("VmRSS")
source = open_source(open_model(path), config)
weights = loader.load_weights(source, config, part, team, lambda _: None, positions=64)
packed = sum(matrix.nbytes for matrix in weights.matrices)
print(json.dumps({"packed": packed, "peak": (kib("VmHWM") - before) << 10}))
"""


def tensors(folder: Path) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Name, dtype and shape of all that the checkpoint with that config.json has to hold."""
    plain, parts = expected_tensors(load_model_config(folder), TensorNames("model.", "lm_head"))
    for name, shape in plain.items():
        yield name, "bf16", shape
    for name, part in parts.items():
        if part.required:
            yield name, part.dtypes[0], part.shapes[0]


def save_zeros(folder: Path, **more: Any) -> Path:
    """A checkpoint of zeros, which take no place on the disk."""
    (folder / "config.json").write_text(json.dumps(CONFIG | more))
    header: dict[str, Any] = {}
    end = 0
    for name, dtype, shape in tensors(folder):
        begin, end = end, end + math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": NAMES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder


def memory_of_loading(path: Path, format: str = "", *, release_bytes: int = 1) -> dict[str, int]:
    """Bytes that are `packed`, and what the process took at its `peak` more than before. With one of `release_bytes`
    pages of the file go as soon as they can, and the peak is that of tensors."""
    command = [sys.executable, "-c", LOAD, os.fspath(path), format, str(release_bytes)]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    memory: dict[str, int] = json.loads(found.stdout)
    return memory


@pytest.mark.parametrize("format", ["", "int4"])
def test_one_tensor_of_an_expert_is_in_memory_twice_at_most(format: str, tmp_path: Path) -> None:
    assert_streams(memory_of_loading(save_zeros(tmp_path), format), TENSOR_BYTES)


@pytest.mark.parametrize("layout", ["gptq asymmetric", "awq", "w8a8", "fp8 blocks"])
def test_what_is_decoded_of_quantized_experts_takes_no_more(layout: str, tmp_path: Path) -> None:
    # As much as of a tensor in bf16: codes and scales of 16 MiB of weights in fp32, and copies of these.
    quantized = {"quantization_config": LAYOUTS[layout].config}
    assert_streams(memory_of_loading(save_zeros(tmp_path, **quantized)), TENSOR_BYTES)


def test_pages_of_the_file_are_given_back_long_before_they_are_a_gibibyte(tmp_path: Path) -> None:
    memory = memory_of_loading(save_zeros(tmp_path), release_bytes=RELEASE_BYTES)
    assert memory["packed"] > 3 * RELEASE_BYTES
    assert_streams(memory, RELEASE_BYTES + TENSOR_BYTES)
    assert RELEASE_BYTES + TENSOR_BYTES + SLACK < 2**30


def assert_streams(memory: dict[str, int], more: int) -> None:
    """What loading takes at its peak is what is packed, and `more` bytes."""
    assert memory["packed"] > 6 * SLACK
    assert memory["packed"] < memory["peak"] <= memory["packed"] + more + SLACK
