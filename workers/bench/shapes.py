"""Models described by their shape alone: the sizes that a benchmark needs, and checkpoints with random weights."""

import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from numaserve.workers.bench.gemma4_shapes import GEMMA4_SHAPES
from numaserve.workers.bench.hybrid_shapes import HYBRID_SHAPES
from numaserve.workers.bench.lfm2_shapes import LFM2_SHAPES
from numaserve.workers.interface.errors import OperatorError


class ModelShape(Protocol):
    """Sizes of a model of some family."""

    def config(self) -> dict[str, Any]:
        """The fields of its config.json."""

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of its tensors."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a model of Llama's family."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    context: int = 131072

    def config(self) -> dict[str, Any]:
        """The fields of its config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        }

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of its tensors."""
        layer = {
            "self_attn.q_proj": (self.heads * self.head_dim, self.hidden),
            "self_attn.k_proj": (self.kv_heads * self.head_dim, self.hidden),
            "self_attn.v_proj": (self.kv_heads * self.head_dim, self.hidden),
            "self_attn.o_proj": (self.hidden, self.heads * self.head_dim),
            "mlp.gate_proj": (self.intermediate, self.hidden),
            "mlp.up_proj": (self.intermediate, self.hidden),
            "mlp.down_proj": (self.hidden, self.intermediate),
            "input_layernorm": (self.hidden,),
            "post_attention_layernorm": (self.hidden,),
        }
        whole: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for index in range(self.layers):
            whole |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
        head = {} if self.tied else {"lm_head.weight": (self.vocab, self.hidden)}
        return whole | {"model.norm.weight": (self.hidden,)} | head


SHAPES = {
    "tiny": Shape(64, 2, 4, 2, 16, 96, 320, tied=True, context=2048),
    "smollm2-135m": Shape(576, 30, 9, 3, 64, 1536, 49152, tied=True, context=8192),
    "llama-1b": Shape(2048, 16, 32, 8, 64, 8192, 128256, tied=True),
    "llama-3b": Shape(3072, 28, 24, 8, 128, 8192, 128256, tied=True),
    "llama-8b": Shape(4096, 32, 32, 8, 128, 14336, 128256, tied=False),
}
_BLOCK_ROWS = 4096  # of random numbers that are made at once
MODEL_SHAPES: dict[str, ModelShape] = {**SHAPES, **HYBRID_SHAPES, **GEMMA4_SHAPES, **LFM2_SHAPES}


@contextmanager
def random_checkpoint(name: str) -> Iterator[Path]:
    """Yield a temporary folder with a model of that shape. Raises `OperatorError` for an unknown shape."""
    if name not in MODEL_SHAPES:
        raise OperatorError(f"--shape {name}: unknown shape; expected one of {', '.join(MODEL_SHAPES)}")
    folder = Path(tempfile.mkdtemp(prefix="numaserve-bench-"))
    try:
        needed, free = _nbytes(MODEL_SHAPES[name]), shutil.disk_usage(folder).free
        if needed > free:
            raise OperatorError(
                f"the checkpoint with random weights needs {needed / 1e9:.1f} GB, but {folder.parent} has only"
                f" {free / 1e9:.1f} GB free: set TMPDIR to a folder with more space"
            )
        write_checkpoint(folder, MODEL_SHAPES[name])
        yield folder
    finally:
        shutil.rmtree(folder)


def write_checkpoint(folder: Path, shape: ModelShape) -> None:
    """Write small normal numbers in bf16, the same in all tensors of one shape."""
    tensors = shape.tensors()
    values = {dimensions: random_bf16(dimensions) for dimensions in set(tensors.values())}
    write_tensors(folder, shape.config(), tensors, lambda name: values[tensors[name]])


def write_tensors(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], values: Callable[[str], bytes]
) -> None:
    """Write a config.json, and a safetensors file of bf16 tensors, given by name and shape; `values` returns those of
    one."""
    (folder / "config.json").write_text(json.dumps(config))
    # The format's own few lines: the library's writers want every tensor in memory of its own.
    header, offset = {}, 0
    for name, dimensions in tensors.items():
        end = offset + 2 * math.prod(dimensions)
        header[name] = {"dtype": "BF16", "shape": dimensions, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in tensors:
            file.write(values(name))


def _nbytes(shape: ModelShape) -> int:
    return sum(2 * math.prod(dimensions) for dimensions in shape.tensors().values())


def random_bf16(shape: tuple[int, ...]) -> bytes:
    """Return small normal numbers, the same for a shape; ones for a vector."""
    if len(shape) == 1:
        return np.full(shape, 0x3F80, np.uint16).tobytes()
    rng, (rows, *columns) = np.random.default_rng(0), shape
    # In blocks: in fp32 the table of a model with per-layer embeddings would take more memory than the model.
    blocks = (min(_BLOCK_ROWS, rows - row) for row in range(0, rows, _BLOCK_ROWS))
    return b"".join(_rounded(rng.standard_normal((count, *columns), np.float32)) for count in blocks)


def _rounded(numbers: npt.NDArray[np.float32]) -> bytes:
    """Return them in bf16, divided by the root of their last dimension."""
    numbers *= numbers.shape[-1] ** -0.5
    return (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes()
