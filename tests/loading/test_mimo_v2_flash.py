"""MiMo-V2-Flash: configurations and tensors as they are published, and values narrower than keys."""

from pathlib import Path
from typing import Any

import pytest
import torch
from numaserve.kernels import Team
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.models.load import load_model_config
from published_decoders import MIMO, MIMO_FULL
from test_gguf_source import write as write_gguf
from test_loader import edit_tensors
from test_model_config import write
from test_quantized_loading import assert_same_logits, matrices

from tests.support.models import layers_of, windows
from tests.support.published_checkpoints import save_mimo, small_mimo

FULL = (0, *range(5, 48, 6))


@pytest.mark.parametrize(("dtype", "of_token"), [("bf16", 2 * (192 + 128)), ("int8", 192 + 128 + 2 * 2)])
def test_a_page_has_the_dimensions_of_keys_and_those_of_values(dtype: Any, of_token: int, tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path, **MIMO))
    heads = 4 * len(MIMO_FULL) + 8 * (48 - len(MIMO_FULL))
    for ranks in (1, 2):
        part = config.partition([1] * ranks).ranks[0]
        assert config.decoder.page_bytes(part, dtype) == PAGE_SIZE * of_token * heads // ranks


def test_layers_that_predict_are_left_out_with_a_note(tmp_path: Path, team: Team) -> None:
    model = small_mimo()
    path = save_mimo(model, tmp_path)
    more = {f"model.mtp.layers.{layer}.eh_proj.weight": torch.zeros(256, 512) for layer in range(3)}
    edit_tensors(path, lambda tensors: tensors | more)
    assert load_model_config(path).notes == ("the checkpoint's multi-token prediction (MTP) layers are skipped: 3",)
    assert_same_logits(path, model, 1, team)


def test_a_published_checkpoint_is_kept_as_it_is(tmp_path: Path, team: Team) -> None:
    model = small_mimo()
    path = save_mimo(model, tmp_path)
    stored = load_model_config(path).stored
    assert "layers.0.self_attn.v_proj" in stored
    assert not any(name.endswith("o_proj") for name in stored)
    for tp in (1, 2, 3):
        for weights in assert_same_logits(path, model, tp, team):
            formats = {matrix.format for matrix in matrices(weights)}
            assert formats == {"fp8", "bf16"}


MIMO2: dict[str, Any] = {
    "block_count": 5,
    "nextn_predict_layers": 3,
    "attention.head_count": 4,
    "attention.head_count_kv": [1, 2, 2, 2, 2],
    "attention.sliding_window": 128,
    "attention.sliding_window_pattern": [0, 1, 1, 1, 1],
    "attention.key_length": 32,
    "attention.value_length": 24,
    "rope.dimension_count": 16,
    "rope.freq_base": 5e6,
    "expert_count": 5,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
}


def test_layers_that_predict_are_left_out_of_a_gguf_file(tmp_path: Path) -> None:
    config = load_model_config(write_gguf(tmp_path / "model.gguf", "mimo2", MIMO2))
    first, second = layers_of(config, Attention)
    assert (first.kv_heads, second.kv_heads) == (1, 2)
    assert (first.values, first.value_scale, first.rotation.rope.rotary_dim) == (24, 1.0, 16)
    assert first.rotation.rope.theta == second.rotation.rope.theta == 5e6
    assert windows(config) == [None, 129]
    assert config.notes == ("the checkpoint's multi-token prediction (MTP) layers are skipped: 3",)
