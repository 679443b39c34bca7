"""A family with a layer of its own is one file: it loads, and is planned, estimated and read from GGUF with no other
edit."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from numaserve.configs import efficiencies
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import SamplingParams, SeqPlan, SlotInit, StepPlan
from numaserve.workers.interface.settings import ModelSettings, WeightFormats
from numaserve.workers.models.load import load_model_config
from numaserve.workers.planning.deployment import make_deployment
from numaserve.workers.planning.estimate import Load, make_estimate
from numaserve.workers.planning.roofline.efficiency import load_efficiencies
from numaserve.workers.planning.roofline.machine import load_machine
from numaserve.workers.process.model import RankModel
from numaserve.workers.process.node import NodeContext
from safetensors.torch import save_file

from tests.support import newcomer
from tests.support.gguf_files import write_gguf
from tests.support.loaded import load_part
from tests.support.machines import OPTIONS, machine
from tests.support.reference_group import run_group

HIDDEN, NARROW, INNER, LAYERS, VOCAB, HEADS, HEAD_DIM = 96, 64, 160, 2, 80, 4, 32
CONFIG = {
    "architectures": ["BottleneckForCausalLM"],
    "hidden_size": HIDDEN,
    "narrow_size": NARROW,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
TOKENS = np.random.default_rng(0).integers(0, VOCAB, 23)
OF_A_LAYER = {
    "input_layernorm": (HIDDEN,),
    "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj": (2 * HEAD_DIM, HIDDEN),
    "self_attn.v_proj": (2 * HEAD_DIM, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
    "post_attention_layernorm": (HIDDEN,),
    "mlp.narrow_proj": (NARROW, HIDDEN),
    "mlp.narrow_norm": (NARROW,),
    "mlp.gate_proj": (INNER, NARROW),
    "mlp.up_proj": (INNER, NARROW),
    "mlp.down_proj": (HIDDEN, INNER),
}
GGUF = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.narrow_proj": "ffn_narrow",
    "mlp.narrow_norm": "ffn_narrow_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(autouse=True)
def _family() -> Iterator[None]:
    newcomer.register()
    yield
    newcomer.unregister()


def tensors() -> dict[str, torch.Tensor]:
    """bf16, by module."""
    random = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (VOCAB, HIDDEN), "norm": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in OF_A_LAYER.items()}
    return {
        name: (1 + 0.1 * torch.randn(shape, generator=random)).bfloat16()
        if len(shape) == 1
        else (torch.randn(shape, generator=random) * shape[-1] ** -0.5).bfloat16()
        for name, shape in shapes.items()
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file({f"model.{name}.weight": each for name, each in tensors().items()}, tmp_path / "model.safetensors")
    return tmp_path


def save_gguf(path: Path) -> Path:
    metadata = {
        "embedding_length": HIDDEN,
        "block_count": LAYERS,
        "feed_forward_length": INNER,
        "context_length": 256,
        "attention.head_count": HEADS,
        "attention.head_count_kv": 2,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "narrow_length": NARROW,
    }
    named = {}
    for name, tensor in tensors().items():
        module = name.split(".", 2)[2] if name.startswith("layers.") else name
        at = f"blk.{name.split('.')[1]}." if name.startswith("layers.") else ""
        named[f"{at}{GGUF[module]}.weight"] = tensor.float().numpy()
    return write_gguf(path, "bottleneck", metadata, named.items())


@pytest.mark.parametrize("tp", [2, 3])
def test_ranks_compute_what_one_computes(tp: int, folder: Path, team: Team) -> None:
    (alone,) = run_group([load_part(folder, team, [1])], TOKENS)
    for logits in run_group([load_part(folder, team, [1] * tp, rank) for rank in range(tp)], TOKENS):
        np.testing.assert_allclose(logits, alone, atol=2e-4)


@pytest.mark.parametrize("format", ["int8", "int4", "fp8"])
def test_every_format_takes_the_memory_that_is_planned(format: str, folder: Path, team: Team) -> None:
    for rank in range(2):
        loaded = load_part(folder, team, [2, 1], rank, formats=WeightFormats(format))  # type: ignore[arg-type]
        for block in loaded.config.decoder.blocks:
            assert loaded.matrix(block.mlp.narrowing).format == format
    deployment = make_deployment(OPTIONS, load_model_config(folder), machine(2, 1))
    assert all(rank.weight_bytes > 0 for rank in deployment.ranks)


def test_a_gguf_file_has_the_same_weights(folder: Path, team: Team, tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "model.gguf")
    loaded, same = load_part(path, team, [1]), load_part(folder, team, [1])
    contents = [[bytes(matrix.buffer()) for matrix in each.all_matrices] for each in (loaded, same)]
    assert contents[0] == contents[1]


def test_its_steps_are_estimated_operation_by_operation(folder: Path) -> None:
    host = load_machine("2x6980p")
    estimate = make_estimate(
        OPTIONS,
        load_model_config(folder),
        host.topology(),
        machine=host,
        efficiencies=load_efficiencies(efficiencies()[host.isa]),
        load=Load(64, 64, 1),
    )
    assert estimate.fits
    # Of one rank: in each layer q, k and v, and what makes the narrow columns.
    assert sum(row.calls for row in estimate.decode.costs if row.name == "linear") == 2 * LAYERS


def test_the_kernels_compute_what_the_reference_does(folder: Path, team: Team) -> None:
    (logits,) = run_group([load_part(folder, team, [1])], TOKENS)
    deployment = make_deployment(OPTIONS, load_model_config(folder), machine(1))
    launch = replace(
        deployment.launches[0],
        model=str(folder),
        cpus=[[-1]],
        settings=ModelSettings(),
        capacity=replace(deployment.capacity, num_pages=9),
    )
    rank = RankModel(launch, NodeContext(0, team, None), lambda done, total: None)
    sampling = SlotInit(SamplingParams(temperature=0.0, logprobs=20))
    plan = SeqPlan(0, 0, TOKENS.tolist(), pages=[0], init=sampling, sample=True)
    (result,) = rank.run(StepPlan(0, [plan])).seqs
    assert result.logprobs is not None
    expected = logits[-1] - np.log(np.exp(logits[-1] - logits[-1].max()).sum()) - logits[-1].max()
    np.testing.assert_allclose(result.logprobs.top_logprobs, expected[result.logprobs.top_ids], atol=0.05)
    assert result.token == int(expected.argmax())


def test_without_its_file_it_is_not_known(folder: Path) -> None:
    newcomer.unregister()
    with pytest.raises(OperatorError, match="'BottleneckForCausalLM' is not supported"):
        load_model_config(folder)
