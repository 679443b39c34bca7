"""What each matrix is kept in, from what the checkpoint and the operator say."""

from dataclasses import dataclass
from typing import get_args

import pytest
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import (
    AS_PUBLISHED,
    BF16_WEIGHTS,
    ActivationDtype,
    ModelSettings,
    WeightFormat,
    WeightFormats,
)
from numaserve.workers.layers.axes import Columns, split
from numaserve.workers.layers.decoder import Decoder
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.formats import cut_of
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.mlp import Mlp
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.layers.stored import GGUF_BLOCKS, ROW, CodeFormat, Layout, Stored
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.handles import BF16, MatrixFormat

from tests.support.configured import configured, with_experts

MATRICES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
MATRICES += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
INT4 = Stored("gptq", "int4", 128, bits=4)
ZEROS = Stored("awq", "int4", 64, bits=4, symmetric=False)
INT8 = Stored("int8", "int8")
FP8 = Stored("fp8", "fp8", 128, block_rows=128)
NVFP4 = Stored("nvfp4_packed", "nvfp4", bits=4)


@dataclass(frozen=True)
class MlpFormats:
    gate_up: MatrixFormat
    down: MatrixFormat


@dataclass(frozen=True)
class LayerFormats:
    qkv: MatrixFormat
    o: MatrixFormat
    mlp: MlpFormats


def part_of(model: ModelConfig, asked: WeightFormats = AS_PUBLISHED, rank: int = 0, world: int = 1) -> RankPart:
    return model.partition([1] * world, ModelSettings(formats=asked)).ranks[rank]


def layer_formats(part: RankPart, layer: int = 0) -> LayerFormats:
    """Of a layer without experts."""
    decoder = part.partition.model
    assert isinstance(decoder, Decoder)
    block = decoder.blocks[layer]
    assert isinstance(block.attention, Attention)
    assert isinstance(block.mlp, Mlp)
    return LayerFormats(part.format(block.attention.qkv), part.format(block.attention.o), mlp_formats(part, block.mlp))


def mlp_formats(part: RankPart, mlp: Mlp | Experts) -> MlpFormats:
    return MlpFormats(part.format(mlp.gate_up), part.format(mlp.down))


def head_format(model: ModelConfig, asked: WeightFormats) -> MatrixFormat:
    return part_of(model, asked).format(model.decoder.head.parameter)


def has_own_head(model: ModelConfig, asked: WeightFormats) -> bool:
    """Whether the head is another matrix in memory than the embedding."""
    part = part_of(model, asked)
    return part.matrix(model.decoder.head.parameter) is not part.matrix(model.decoder.embedding.table)


def formats_of(
    stored: Stored, asked: WeightFormats = AS_PUBLISHED, rank: int = 0, world: int = 1, **others: Stored | None
) -> LayerFormats:
    """Of a layer whose matrices are all `stored`, but for `others` by the end of their names."""
    found = {name: others.get(name.rpartition(".")[2], stored) for name in MATRICES}
    model = configured(stored={f"layers.0.{name}": each for name, each in found.items() if each is not None})
    return layer_formats(part_of(model, asked, rank, world))


def all_of(made: MatrixFormat) -> LayerFormats:
    """A layer whose matrices are all alike."""
    return LayerFormats(made, made, MlpFormats(made, made))


def activations_of(made: LayerFormats) -> set[ActivationDtype]:
    """What the matrices of a layer are multiplied by."""
    return {each.activations for each in (made.qkv, made.o, made.mlp.gate_up, made.mlp.down)}


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
        (GGUF_BLOCKS["q4_k"], MatrixFormat("int4", 32, "minima", "int8")),
        (GGUF_BLOCKS["q2_k"], MatrixFormat("int8_group", 32, activations="int8")),
        (GGUF_BLOCKS["q3_k"], MatrixFormat("int8_group", 128, activations="int8")),
        (GGUF_BLOCKS["q6_k"], MatrixFormat("int8_group", 32, activations="int8")),
        (GGUF_BLOCKS["iq4_xs"], MatrixFormat("iq4", 32, activations="int8")),
        (GGUF_BLOCKS["iq3_xxs"], MatrixFormat("iq3", 32, activations="int8")),
        (GGUF_BLOCKS["iq3_s"], MatrixFormat("int4", 32, "zeros", "int8")),
        (GGUF_BLOCKS["iq2_xxs"], MatrixFormat("iq2", 32, activations="int8")),
        (GGUF_BLOCKS["iq2_s"], MatrixFormat("int8_group", 32, activations="int8")),
        (NVFP4, MatrixFormat("nvfp4", 128)),
        (Stored("mxfp8", "fp8", 32), MatrixFormat("fp8", 32)),
    ],
)
def test_a_matrix_takes_the_largest_group_that_fits(stored: Stored, expected: MatrixFormat) -> None:
    assert formats_of(stored) == all_of(expected)


def test_a_rank_that_begins_inside_a_group_takes_a_smaller_one() -> None:
    # After none, 5 and 3 of 9 heads of 64 columns: 0, 320 and 192.
    assert formats_of(INT4, rank=0, world=2).o == MatrixFormat("int4", 128)
    assert formats_of(INT4, rank=1, world=2).o == MatrixFormat("int4", 64)
    assert formats_of(INT4, rank=1, world=3).o == MatrixFormat("int4", 64)
    assert formats_of(INT8, rank=1, world=3).o == MatrixFormat("int8")
    assert formats_of(NVFP4, rank=1, world=3).o == MatrixFormat("nvfp4", 128)


def test_parts_of_one_matrix_meet_in_the_format_that_holds_all() -> None:
    eight, k_quant = GGUF_BLOCKS["q8_0"], GGUF_BLOCKS["q4_k"]
    assert formats_of(INT4, v_proj=eight).qkv == MatrixFormat("int8_group", 32, "zeros")
    assert formats_of(k_quant, v_proj=GGUF_BLOCKS["q6_k"]).qkv == MatrixFormat("int8_group", 32, "minima", "int8")
    iq4 = GGUF_BLOCKS["iq4_nl"]
    assert formats_of(iq4, v_proj=eight).qkv == MatrixFormat("int8_group", 32)
    assert formats_of(iq4, v_proj=GGUF_BLOCKS["q5_k"]).qkv == MatrixFormat("int8_group", 32, "minima", "int8")
    assert formats_of(iq4, v_proj=INT4).qkv == MatrixFormat("int8_group", 32, "zeros")
    iq3 = GGUF_BLOCKS["iq3_xxs"]
    assert formats_of(iq3, v_proj=iq4).qkv == MatrixFormat("int8_group", 32, activations="int8")
    assert formats_of(iq3, v_proj=GGUF_BLOCKS["iq3_s"]).qkv == MatrixFormat("int8_group", 32, "zeros", "int8")
    assert formats_of(iq3, v_proj=k_quant).qkv == MatrixFormat("int8_group", 32, "minima", "int8")
    assert formats_of(INT4, v_proj=ZEROS).qkv == MatrixFormat("int4", 64, "zeros")
    assert formats_of(INT4, v_proj=None).qkv == BF16
    assert formats_of(INT4, up_proj=INT8).mlp == MlpFormats(BF16, MatrixFormat("int4", 128))
    assert formats_of(INT4, up_proj=FP8).mlp == MlpFormats(BF16, MatrixFormat("int4", 128))
    assert formats_of(NVFP4, v_proj=GGUF_BLOCKS["mxfp4"]).qkv == BF16
    assert formats_of(INT4, v_proj=None).o == MatrixFormat("int4", 128)


@pytest.mark.parametrize("kind", GGUF_BLOCKS)
def test_the_kinds_of_gguf_files_are_multiplied_by_int8_activations_but_for_two(kind: str) -> None:
    expected = "bf16" if kind in ("q8_0", "mxfp4") else "int8"
    assert activations_of(formats_of(GGUF_BLOCKS[kind])) == {expected}


@pytest.mark.parametrize("layout", ["gptq", "gptq_v2", "awq", "packed", "gpt_oss", "mxfp4_packed"])
@pytest.mark.parametrize("native", ["int4", "int8_group", "mxfp4"])
def test_what_other_engines_publish_is_multiplied_by_bf16_activations(layout: Layout, native: CodeFormat) -> None:
    assert activations_of(formats_of(Stored(layout, native, 32))) == {"bf16"}


@pytest.mark.parametrize("asked", get_args(ActivationDtype))
@pytest.mark.parametrize("stored", [INT4, ZEROS, *GGUF_BLOCKS.values()], ids=lambda each: each.layout)
def test_the_operator_may_name_the_activations_of_any(stored: Stored, asked: ActivationDtype) -> None:
    assert activations_of(formats_of(stored, WeightFormats(activations=asked))) == {asked}


def test_what_leaves_no_choice_of_activations_is_the_same_whatever_is_asked_for() -> None:
    for stored in (INT8, FP8):
        assert formats_of(stored, WeightFormats(activations="int8")) == formats_of(stored)


def test_parts_of_one_matrix_that_differ_in_activations_are_multiplied_by_bf16() -> None:
    assert formats_of(INT4, v_proj=GGUF_BLOCKS["q6_k"]).qkv.activations == "bf16"
    assert formats_of(GGUF_BLOCKS["q5_0"], v_proj=GGUF_BLOCKS["q8_0"]).qkv.activations == "bf16"


@pytest.mark.parametrize(("faster", "by"), [((), "bf16"), (("int4",), "int8")])
def test_what_is_quantized_while_loading_is_multiplied_by_what_is_faster(
    faster: tuple[WeightFormat, ...], by: ActivationDtype
) -> None:
    asked = WeightFormats("int4", int8_activations=faster)
    assert activations_of(layer_formats(part_of(configured(), asked))) == {by}
    for named in get_args(ActivationDtype):
        asked = WeightFormats("int4", activations=named, int8_activations=faster)
        assert activations_of(layer_formats(part_of(configured(), asked))) == {named}
    assert activations_of(formats_of(INT4, WeightFormats("int4", int8_activations=faster))) == {"bf16"}


def test_a_partition_says_what_its_formats_are_multiplied_by() -> None:
    stored = {"layers.0.self_attn.o_proj": GGUF_BLOCKS["q4_0"], "layers.1.mlp.down_proj": GGUF_BLOCKS["q6_k"]}
    stored |= {"layers.2.self_attn.o_proj": GGUF_BLOCKS["mxfp4"], "layers.2.mlp.down_proj": GGUF_BLOCKS["iq4_nl"]}
    model = configured(stored=stored)
    by = model.partition([2, 1], ModelSettings()).multiplied_by()
    assert by == {"bf16": ["mxfp4"], "int8": ["int4", "int8_group", "iq4"]}
    by = model.partition([2, 1], ModelSettings(formats=WeightFormats(activations="bf16"))).multiplied_by()
    assert by == {"bf16": ["int4", "int8_group", "iq4", "mxfp4"]}
    assert configured().partition([1], ModelSettings()).multiplied_by() == {}


def test_the_operator_may_expand_a_quantized_checkpoint_or_name_what_it_is() -> None:
    assert formats_of(INT4, BF16_WEIGHTS) == all_of(BF16)
    assert formats_of(INT4, WeightFormats("int4")).o == MatrixFormat("int4", 128)
    assert formats_of(INT4, WeightFormats("int4"), v_proj=None).qkv == BF16


@pytest.mark.parametrize("asked", ["int8", "fp8", "int8_group"])
def test_quantizing_what_is_quantized_already_is_refused(asked: str) -> None:
    with pytest.raises(
        OperatorError,
        match=f"already quantized to int4 and cannot be quantized to {asked}: "
        f"leave out --quantization to keep int4, or name a checkpoint in bf16 or {asked}",
    ):
        formats_of(INT4, WeightFormats(asked))  # type: ignore[arg-type]


@pytest.mark.parametrize(("asked", "group"), [("int4", 32), ("fp8", 128), ("int8", 0)])
def test_a_checkpoint_that_is_not_quantized_takes_any_format(asked: str, group: int) -> None:
    made = layer_formats(part_of(configured(), WeightFormats(asked)))  # type: ignore[arg-type]
    assert made == all_of(MatrixFormat(asked, group))  # type: ignore[arg-type]


def test_a_tied_head_is_kept_quantized_beside_the_embedding() -> None:
    model = configured(stored={"embed_tokens": GGUF_BLOCKS["q8_0"]})
    assert has_own_head(model, AS_PUBLISHED)
    assert head_format(model, AS_PUBLISHED) == MatrixFormat("int8_group", 32)
    assert not has_own_head(model, BF16_WEIGHTS)
    assert not has_own_head(configured(), AS_PUBLISHED)


def test_a_head_that_is_not_quantized_may_be_while_loading() -> None:
    model = configured(tie_word_embeddings=False, stored={"layers.0.mlp.up_proj": INT4})
    assert head_format(model, AS_PUBLISHED) == BF16
    assert head_format(model, WeightFormats("int4", "int4")) == MatrixFormat("int4", 32)


@pytest.mark.parametrize(
    ("group", "parts", "cut"), [(128, 1, 128), (128, 2, 64), (32, 1, 32), (ROW, 1, 32), (64, 3, 64)]
)
def test_the_mlp_is_cut_at_groups_unless_that_would_be_uneven(group: int, parts: int, cut: int) -> None:
    assert cut_of([Stored("gptq", "int4", group, bits=4), None], 1536, parts) == cut


def test_the_groups_of_what_is_divided_by_columns_decide_about_the_cut() -> None:
    stored = Stored("gptq", "int4", 128, bits=4)
    down, up = (
        configured(intermediate_size=1568, stored={f"layers.3.mlp.{name}_proj": stored}) for name in ("down", "up")
    )
    axis = Columns("intermediate", 1568)
    assert down.partition([1, 1]).ranges(axis) == split(1568, [1, 1], 64) != split(1568, [1, 1], 32)
    assert up.partition([1, 1]).ranges(axis) == split(1568, [1, 1], 32)


def experts_of(
    asked: WeightFormats = AS_PUBLISHED, rank: int = 0, world: int = 1, **others: Stored | None
) -> tuple[MlpFormats, MlpFormats]:
    """The routed and the shared ones of a layer whose experts are all `INT4`, but for `others`: down_proj of expert 1,
    say, is `e1_down_proj`."""
    experts = {f"e{index}": f"mlp.experts.{index}" for index in range(3)} | {"s": "mlp.shared_expert"}
    parts = ("gate_proj", "up_proj", "down_proj")
    found = {f"{at}.{part}": others.get(f"{key}_{part}", INT4) for key, at in experts.items() for part in parts}
    stored = {f"layers.0.{name}": each for name, each in found.items() if each is not None}
    model = with_experts(3, 2, 640, 256, dense=(), stored=stored)
    part, mlp = part_of(model, asked, rank, world), model.decoder.blocks[0].mlp
    assert isinstance(mlp, Experts)
    assert mlp.shared_mlp is not None
    return mlp_formats(part, mlp), mlp_formats(part, mlp.shared_mlp)


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


def test_experts_take_any_format_when_the_checkpoint_is_not_quantized() -> None:
    model = with_experts(3, 2, 640, 256, dense=(1,))
    part, int4 = part_of(model, WeightFormats("int4")), MatrixFormat("int4", 32)
    mlp = model.decoder.blocks[0].mlp
    assert isinstance(mlp, Experts)
    assert mlp.shared_mlp is not None
    assert mlp_formats(part, mlp) == mlp_formats(part, mlp.shared_mlp) == MlpFormats(int4, int4)
    assert layer_formats(part, 1) == all_of(int4)
