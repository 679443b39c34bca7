"""What each matrix is kept in, from what the checkpoint and the operator say."""

from __future__ import annotations

import pytest
from numaserve.workers.errors import OperatorError
from numaserve.workers.models.spec import MoeConfig
from numaserve.workers.models.stored import GGUF_BLOCKS, ROW, Stored
from numaserve.workers.settings import AS_PUBLISHED, BF16_WEIGHTS, WeightFormats
from numaserve.workers.weights.formats import (
    BF16,
    LayerFormats,
    MatrixFormat,
    MlpFormats,
    MoeFormats,
    cut_of,
    has_own_lm_head,
    layer_formats,
    lm_head_format,
)
from numaserve.workers.weights.sharding import make_shard

from tests.support.model_configs import model_config

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
    model = model_config(stored={f"layers.0.{name}": each for name, each in found.items() if each is not None})
    return layer_formats(model, asked, make_shard(model, [1] * world, rank), 0)


def all_of(made: MatrixFormat) -> LayerFormats:
    """A layer whose matrices are all alike."""
    return LayerFormats(made, made, MlpFormats(made, made))


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
    assert formats_of(stored) == all_of(expected)


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
    assert formats_of(INT4, up_proj=INT8).mlp == MlpFormats(BF16, MatrixFormat("int4", 128))
    assert formats_of(INT4, up_proj=FP8).mlp == MlpFormats(BF16, MatrixFormat("int4", 128))
    assert formats_of(INT4, v_proj=None).o == MatrixFormat("int4", 128)


def test_the_operator_may_expand_a_quantised_checkpoint_or_name_what_it_is() -> None:
    assert formats_of(INT4, BF16_WEIGHTS) == all_of(BF16)
    assert formats_of(INT4, WeightFormats("int4")).o == MatrixFormat("int4", 128)
    assert formats_of(INT4, WeightFormats("int4"), v_proj=None).qkv == BF16


@pytest.mark.parametrize("asked", ["int8", "fp8", "int8_group"])
def test_quantising_what_is_quantised_already_is_refused(asked: str) -> None:
    with pytest.raises(OperatorError, match=f"to int4, and cannot be quantised to {asked}: leave out --quantization"):
        formats_of(INT4, WeightFormats(asked))  # type: ignore[arg-type]


@pytest.mark.parametrize(("asked", "group"), [("int4", 32), ("fp8", 128), ("int8", 0)])
def test_a_checkpoint_that_is_not_quantised_takes_any_format(asked: str, group: int) -> None:
    model = model_config()
    made = layer_formats(model, WeightFormats(asked), make_shard(model, [1], 0), 0)  # type: ignore[arg-type]
    assert made == all_of(MatrixFormat(asked, group))  # type: ignore[arg-type]


def test_a_tied_head_is_kept_quantised_beside_the_embedding() -> None:
    model = model_config(stored={"embed_tokens": GGUF_BLOCKS["q8_0"]})
    assert has_own_lm_head(model, AS_PUBLISHED)
    assert lm_head_format(model, AS_PUBLISHED) == MatrixFormat("int8_group", 32)
    assert not has_own_lm_head(model, BF16_WEIGHTS)
    assert not has_own_lm_head(model_config(), AS_PUBLISHED)


def test_a_head_that_is_not_quantised_may_be_while_loading() -> None:
    model = model_config(tie_word_embeddings=False, stored={"layers.0.mlp.up_proj": INT4})
    assert lm_head_format(model, AS_PUBLISHED) == BF16
    assert lm_head_format(model, WeightFormats("int4", "int4")) == MatrixFormat("int4", 32)


@pytest.mark.parametrize(
    ("group", "parts", "cut"), [(128, 1, 128), (128, 2, 64), (32, 1, 32), (ROW, 1, 32), (64, 3, 64)]
)
def test_the_mlp_is_cut_at_groups_unless_that_would_be_uneven(group: int, parts: int, cut: int) -> None:
    down = Stored("gptq", "int4", group, bits=4)
    assert cut_of(model_config(stored={"layers.0.mlp.down_proj": down}), parts, 1536, ["mlp.down_proj"]) == cut
    assert cut_of(model_config(stored={"layers.0.mlp.down_proj": down}), parts, 1536, ["mlp.up_proj"]) == 32


MOE = MoeConfig(3, 2, 640, shared_intermediate_size=256)


def experts_of(
    asked: WeightFormats = AS_PUBLISHED, rank: int = 0, world: int = 1, **others: Stored | None
) -> tuple[MlpFormats, MlpFormats]:
    """The routed and the shared ones of a layer whose experts are all `INT4`, but for `others`: down_proj of expert 1,
    say, is `e1_down_proj`."""
    experts = {f"e{index}": f"mlp.experts.{index}" for index in range(MOE.num_experts)} | {"s": "mlp.shared_expert"}
    parts = ("gate_proj", "up_proj", "down_proj")
    found = {f"{at}.{part}": others.get(f"{key}_{part}", INT4) for key, at in experts.items() for part in parts}
    stored = {f"layers.0.{name}": each for name, each in found.items() if each is not None}
    model = model_config(family="qwen2_moe", moe=MOE, moe_layers=(0,), stored=stored)
    made = layer_formats(model, asked, make_shard(model, [1] * world, rank), 0).mlp
    assert isinstance(made, MoeFormats)
    assert made.moe == MOE
    return made.experts, made.shared


def test_the_routed_experts_of_a_layer_are_of_one_format_and_the_shared_one_has_its_own() -> None:
    int4, wide = MatrixFormat("int4", 128), MatrixFormat("int8_group", 32, "zeros")
    same = MlpFormats(int4, int4)
    assert experts_of() == (same, same)
    assert experts_of(e1_down_proj=GGUF_BLOCKS["q8_0"]) == (MlpFormats(int4, wide), same)
    mixed = MlpFormats(wide, MatrixFormat("int8_group", 32))
    assert experts_of(s_up_proj=GGUF_BLOCKS["q8_0"], s_down_proj=GGUF_BLOCKS["q8_0"]) == (same, mixed)
    assert experts_of(e2_gate_proj=None, s_down_proj=None) == (MlpFormats(BF16, int4), MlpFormats(int4, BF16))
    assert experts_of(BF16_WEIGHTS) == (MlpFormats(BF16, BF16), MlpFormats(BF16, BF16))


def test_groups_begin_where_the_columns_of_either_kind_of_expert_do() -> None:
    # 640 columns are divided at 320 and 256 at 128.
    downs = {mlp.down for mlp in experts_of(rank=1, world=2)}
    assert downs == {MatrixFormat("int4", 64), MatrixFormat("int4", 128)}


def test_experts_take_any_format_when_the_checkpoint_is_not_quantised() -> None:
    model = model_config(family="qwen2_moe", moe=MOE, moe_layers=(0,))
    made = layer_formats(model, WeightFormats("int4"), make_shard(model, [1], 0), 0)
    int4 = MatrixFormat("int4", 32)
    assert made == LayerFormats(int4, int4, MoeFormats(MOE, MlpFormats(int4, int4), MlpFormats(int4, int4)))
    assert layer_formats(model, WeightFormats("int4"), make_shard(model, [1], 0), 1) == all_of(int4)
