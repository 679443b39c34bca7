"""After the last layer's attention, only the rows whose logits are wanted are computed."""

from pathlib import Path

import pytest
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.roofline.ranks import rank_operations
from numaserve.workers.program.cost import StepWork

from tests.support import checkpoints

TOKENS = 200


def part_of(config: ModelConfig) -> RankPart:
    (part,) = config.partition([1]).ranks
    return part


def flops(config: ModelConfig, name: str, rows: int) -> float:
    """Operations of one name for a prompt with `rows` rows of logits."""
    costs = rank_operations(config.decoder, part_of(config))
    return sum(cost.amount(StepWork([(0, TOKENS)], rows)).flops for cost in costs if cost.name == name)


@pytest.mark.parametrize(("model", "product"), [("qwen2", "gate_up"), ("qwen3_moe", "moe_gate_up")])
def test_the_mlp_of_the_last_layer_is_computed_for_rows_of_logits(model: str, product: str, tmp_path: Path) -> None:
    config = load_model_config(checkpoints.save(checkpoints.random_model(model), tmp_path))
    layers = len(config.decoder.blocks)
    assert config.decoder.narrows_in == layers - 1
    whole, one, none = (flops(config, product, rows) for rows in (TOKENS, 1, 0))
    assert none == pytest.approx(whole * (layers - 1) / layers)
    assert none < one < none + 0.2 * whole / layers


def test_all_rows_are_computed_where_something_else_reads_them(tmp_path: Path) -> None:
    config = load_model_config(checkpoints.save(checkpoints.random_model("qwen2"), tmp_path))
    assert config.pooled().decoder.narrows_in is None
