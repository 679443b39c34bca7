"""What each matrix is kept in, from what the checkpoint and the operator say."""

from __future__ import annotations

import pytest
from numaserve.workers.errors import OperatorError
from numaserve.workers.models.stored import GGUF_BLOCKS, ROW, Stored
from numaserve.workers.protocol import AS_PUBLISHED, BF16_WEIGHTS, WeightFormats
from numaserve.workers.weights.formats import (
    BF16,
    LayerFormats,
    MatrixFormat,
    cut_of,
    has_own_lm_head,
    layer_formats,
    lm_head_format,
)
from numaserve.workers.weights.sharding import make_shard
from test_sharding import config

MATRICES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
MATRICES += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
INT4 = Stored("gptq", "int4", 128, bits=4)
ZEROS = Stored("awq", "int4", 64, bits=4, symmetric=False)
INT8 = Stored("int8", "int8")
FP8 = Stored("fp8", "fp8", 128, block_rows=128)


def formats_of(
    stored: Stored, asked: WeightFormats = AS_PUBLISHED, rank: int = 0, world: int = 1, **others: Stored | None
) -> LayerFormats:
    """Of a layer whose matrices are all `stored`, but for `others` by the end of their names."""
    found = {name: others.get(name.rpartition(".")[2], stored) for name in MATRICES}
    model = config(stored={f"layers.0.{name}": each for name, each in found.items() if each is not None})
    return layer_formats(model, asked, make_shard(model, [1] * world, rank), 0)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (INT4, MatrixFormat("int4", 128)),
        (ZEROS, MatrixFormat("int4", 64, "zeros")),
        (INT8, MatrixFormat("int8")),
        (FP8, MatrixFormat("fp8", 128)),
        (Stored("fp8", "fp8", ROW), MatrixFormat("fp8", 128)),
        (Stored("gptq", "int4", 96, bits=4), MatrixFormat("int4", 32)),
        (Stored("gptq", "int4", 256, bits=4), MatrixFormat("int4", 128)),
        (GGUF_BLOCKS["q4_k"], MatrixFormat("int4", 32, "minima")),
        (GGUF_BLOCKS["q6_k"], MatrixFormat("int8_group", 32)),
    ],
)
def test_a_matrix_takes_the_largest_group_that_fits(stored: Stored, expected: MatrixFormat) -> None:
    assert formats_of(stored) == LayerFormats(expected, expected, expected, expected)


def test_a_rank_that_begins_inside_a_group_takes_a_smaller_one() -> None:
    # After 6 and 3 of 9 heads of 64 columns: 384 and 192.
    assert formats_of(INT4, rank=1, world=2).o == MatrixFormat("int4", 128)
    assert formats_of(INT4, rank=1, world=3).o == MatrixFormat("int4", 64)
    assert formats_of(INT8, rank=1, world=3).o == MatrixFormat("int8")


def test_parts_of_one_matrix_meet_in_the_format_that_holds_all() -> None:
    eight, k_quant = GGUF_BLOCKS["q8_0"], GGUF_BLOCKS["q4_k"]
    assert formats_of(INT4, v_proj=eight).qkv == MatrixFormat("int8_group", 32, "zeros")
    assert formats_of(k_quant, v_proj=GGUF_BLOCKS["q6_k"]).qkv == MatrixFormat("int8_group", 32, "minima")
    assert formats_of(INT4, v_proj=ZEROS).qkv == MatrixFormat("int4", 64, "zeros")
    assert formats_of(INT4, v_proj=None).qkv == BF16
    assert formats_of(INT4, up_proj=INT8).gate_up == BF16
    assert formats_of(INT4, up_proj=FP8).gate_up == BF16
    assert formats_of(INT4, v_proj=None).o == MatrixFormat("int4", 128)


def test_the_operator_may_expand_a_quantised_checkpoint_or_name_what_it_is() -> None:
    assert formats_of(INT4, BF16_WEIGHTS) == LayerFormats(BF16, BF16, BF16, BF16)
    assert formats_of(INT4, WeightFormats("int4")).o == MatrixFormat("int4", 128)
    assert formats_of(INT4, WeightFormats("int4"), v_proj=None).qkv == BF16


@pytest.mark.parametrize("asked", ["int8", "fp8", "int8_group"])
def test_quantising_what_is_quantised_already_is_refused(asked: str) -> None:
    with pytest.raises(OperatorError, match=f"to int4, and cannot be quantised to {asked}: leave out --quantization"):
        formats_of(INT4, WeightFormats(asked))  # type: ignore[arg-type]


@pytest.mark.parametrize(("asked", "group"), [("int4", 32), ("fp8", 128), ("int8", 0)])
def test_a_checkpoint_that_is_not_quantised_takes_any_format(asked: str, group: int) -> None:
    model = config()
    made = layer_formats(model, WeightFormats(asked), make_shard(model, [1], 0), 0)  # type: ignore[arg-type]
    assert made.qkv == made.down == MatrixFormat(asked, group)  # type: ignore[arg-type]


def test_a_tied_head_is_kept_quantised_beside_the_embedding() -> None:
    model = config(stored={"embed_tokens": GGUF_BLOCKS["q8_0"]})
    assert has_own_lm_head(model, AS_PUBLISHED)
    assert lm_head_format(model, AS_PUBLISHED) == MatrixFormat("int8_group", 32)
    assert not has_own_lm_head(model, BF16_WEIGHTS)
    assert not has_own_lm_head(config(), AS_PUBLISHED)


def test_a_head_that_is_not_quantised_may_be_while_loading() -> None:
    model = config(tie_word_embeddings=False, stored={"layers.0.mlp.up_proj": INT4})
    assert lm_head_format(model, AS_PUBLISHED) == BF16
    assert lm_head_format(model, WeightFormats("int4", "int4")) == MatrixFormat("int4", 32)


@pytest.mark.parametrize(
    ("group", "parts", "cut"), [(128, 1, 128), (128, 2, 64), (32, 1, 32), (ROW, 1, 32), (64, 3, 64)]
)
def test_the_mlp_is_cut_at_groups_unless_that_would_be_uneven(group: int, parts: int, cut: int) -> None:
    down = Stored("gptq", "int4", group, bits=4)
    assert cut_of(config(stored={"layers.0.mlp.down_proj": down}), parts) == cut
