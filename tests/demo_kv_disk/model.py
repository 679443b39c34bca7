"""Models of about a billion parameters with random weights and a tokenizer: what a long prompt costs depends on
neither."""

from dataclasses import replace
from pathlib import Path

from numaserve.workers.bench.hybrid_shapes import HYBRID_SHAPES
from numaserve.workers.bench.shapes import SHAPES as DENSE_SHAPES
from numaserve.workers.bench.shapes import write_checkpoint

from tests.support import tokenizer_builders

_CONTEXT = 32_768
SHAPES = {"dense": DENSE_SHAPES["llama-1b"], "hybrid": HYBRID_SHAPES["qwen3.5-0.8b"]}


def write_model(folder: Path, shape: str) -> Path:
    """Write a model of one of `SHAPES`, but for its vocabulary, unless it is there, and return its folder."""
    if not (folder / "tokenizer_config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = tokenizer_builders.byte_level_backend()
        tokenizer.save(str(folder / "tokenizer.json"))
        write_checkpoint(folder, replace(SHAPES[shape], vocab=tokenizer.get_vocab_size(), context=_CONTEXT))
        (folder / "tokenizer_config.json").write_text("{}")  # the last file: what is not complete is written again
    return folder
