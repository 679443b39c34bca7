"""DeepSeek-R1, of which there is nothing but its config.json here, on the largest shipped host."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from numaserve.configs import efficiencies
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings, WeightFormats
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.estimate import Estimate, Load, make_estimate
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.placement import place_ranks
from numaserve.workers.planning.roofline.efficiency import load_efficiencies
from numaserve.workers.planning.roofline.machine import load_machine
from numaserve.workers.planning.roofline.memory import node_memory, remedies
from numaserve.workers.planning.roofline.phases import prefill_steps
from numaserve.workers.planning.roofline.ranks import rank_operations
from numaserve.workers.program.cost import OperationCost, StepWork
from test_full_shapes import assert_shared

from tests.support.full_shapes import DEEPSEEK_R1

PAGE = Path(__file__).parents[2] / "docs" / "plan.md"
HIDDEN, LAYERS, HEADS, TOP_K, WIDTH, DENSE = 7168, 61, 128, 8, 2048, 3
INT8 = ModelSettings(formats=WeightFormats("int8"))
# Of the published config.json.
FP8 = {
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    }
}
OPTIONS = DeploymentOptions(
    model="r1",
    max_running_requests=1,
    max_step_tokens=512,
    mem_fraction_static=0.85,
    step_deadline_s=60.0,
    settings=INT8,
)
LOAD = Load(1024, 1024, 1)
SHORT = Load(32, 3008, 1)  # with the same context in the middle of the answers: work of a prompt takes long to count


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = tmp_path_factory.mktemp("r1")
    (folder / "config.json").write_text(json.dumps(DEEPSEEK_R1))
    return load_model_config(folder)


@pytest.fixture(scope="module")
def operations(config: ModelConfig) -> list[OperationCost]:
    """Of a single rank with the whole model."""
    return rank_operations(config.decoder, config.partition([128], INT8).ranks[0])


def estimate(config: ModelConfig, options: DeploymentOptions, load: Load) -> Estimate:
    machine = load_machine("2x6980p")
    return make_estimate(
        options,
        config,
        machine.topology(),
        machine=machine,
        efficiencies=load_efficiencies(efficiencies()[machine.isa]),
        load=load,
    )


@pytest.fixture(scope="module")
def estimated(config: ModelConfig) -> Estimate:
    """The estimate with `OPTIONS`. To count the work of hundreds of threads takes seconds."""
    return estimate(config, OPTIONS, LOAD)


def nbytes(operations: list[OperationCost], name: str, step: StepWork) -> float:
    return sum(each.amount(step).nbytes for each in operations if name in (each.name, ""))


def test_a_token_reads_its_experts_and_all_else_once(operations: list[OperationCost]) -> None:
    step = StepWork([(1535, 1)], 1)
    mixtures = LAYERS - DENSE
    row_scales = 8  # bytes of an output feature, besides its weights
    assert nbytes(operations, "moe_gate_up", step) == mixtures * (TOP_K + 1) * 2 * WIDTH * (HIDDEN + row_scales)
    assert nbytes(operations, "moe_down", step) == mixtures * (TOP_K + 1) * HIDDEN * (WIDTH + row_scales)
    assert nbytes(operations, "attention", step) == LAYERS * 1536 * (512 + 64) * 2
    group_scales = 2 + 4  # one group, and the factor of its row
    assert nbytes(operations, "latent_absorb", step) == LAYERS * HEADS * 512 * (128 + group_scales)
    # 37 billion parameters are active; the head and the router are bf16.
    assert 37.5e9 < nbytes(operations, "", step) < 40e9


@pytest.mark.parametrize("batch", [1, 8])
def test_two_ranks_read_half_of_the_latents_of_a_long_sequence_each(batch: int, config: ModelConfig) -> None:
    step, short = (StepWork([(context - 1, 1)] * batch, batch) for context in (32768, 1024))
    latents = batch * LAYERS * 32768 * (512 + 64) * 2
    for rank in range(2):
        operations = rank_operations(config.decoder, config.partition([64, 64], INT8).ranks[rank])
        assert nbytes(operations, "attention", step) == 0
        assert nbytes(operations, "divided_attention", step) == latents / 2
        assert nbytes(operations, "attention", short) == batch * LAYERS * 1024 * (512 + 64) * 2


def test_a_prompt_of_two_chunks_reads_the_experts_twice(operations: list[OperationCost]) -> None:
    *others, last = [each for each in operations if each.name == "moe_down"]
    whole, chunks = (sum(nbytes(others, "moe_down", step) for step in prefill_steps(1024, c)) for c in (1024, 512))
    assert chunks == pytest.approx(2 * whole, rel=1e-6)
    # The last layer computes the last token alone.
    once, again = (sum(nbytes([last], "moe_down", step) for step in prefill_steps(1024, c)) for c in (1024, 512))
    assert once == again


@pytest.mark.parametrize(("host", "fits"), [("2x6980p", True), ("6980p", False)])
def test_its_int8_weights_fit_two_sockets_and_not_one(host: str, fits: bool, config: ModelConfig) -> None:
    topology = load_machine(host).topology()
    ranks = place_ranks(topology, None, None, False).ranks
    partition = config.partition([len(rank.cpus) for rank in ranks], OPTIONS.settings)
    memory = node_memory(OPTIONS, config, topology, ranks, partition=partition, context=2048)
    assert all(node.fits for node in memory) == fits
    # 671 billion parameters, and what is bf16.
    assert 671e9 < sum(node.weights for node in memory) < 705e9
    if not fits:
        found = list(remedies(OPTIONS, config, topology, ranks, partition=partition, context=2048))
        assert found[0] == "--quantization int4"
        assert not any("--kv-cache-dtype" in each for each in found)  # latents are bf16 always


def test_the_layer_that_predicts_another_token_is_neither_counted_nor_passed_over(config: ModelConfig) -> None:
    # An estimate of all layers takes seconds; one with experts is enough.
    small = replace(config, decoder=replace(config.decoder, blocks=config.decoder.blocks[: DENSE + 1]))
    counted, without = (estimate(each, OPTIONS, SHORT) for each in (small, replace(small, skipped_layers=0)))
    assert counted.decode == without.decode
    assert [node.weights for node in counted.memory] == [node.weights for node in without.memory]
    assert set(counted.notes) - set(without.notes) == set(config.notes) != set()


def test_a_step_cannot_be_faster_than_the_bytes_that_a_rank_reads(estimated: Estimate) -> None:
    made = estimated
    assert_shared(made)
    assert made.decode.nbytes * len(made.cores) > 39e9  # a rank has an equal part at best
    assert made.tpot_s > made.decode.nbytes / (made.machine.node_read_gb_s * 1e9) > 0.026


def test_the_documentation_states_what_a_rank_reads(estimated: Estimate, tmp_path: Path) -> None:
    """The other figures change with the measured efficiencies; the bytes and the bound are of the model alone."""
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_R1 | FP8))
    settings = ModelSettings()
    published = estimate(load_model_config(tmp_path, settings), replace(OPTIONS, settings=settings), SHORT)
    for row, made in {"int8": estimated.decode, "fp8 as published": published.decode}.items():
        assert made is not None
        figures = f"{made.bound_s * 1e3:.1f} \\| {made.nbytes / 1e9:.2f} GB"
        assert re.search(rf"\| DeepSeek-R1 {row}: estimate \|.*\| {figures} \|", PAGE.read_text()), figures


def test_a_published_fp8_model_in_int8_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_R1 | FP8))
    message = (
        "already quantized to fp8 and cannot be quantized to int8: leave out --quantization to keep fp8, or name a "
        "checkpoint in bf16 or int8. For an estimate, a config.json without its quantization_config is enough"
    )
    with pytest.raises(OperatorError, match=message):
        estimate(load_model_config(tmp_path, INT8), OPTIONS, LOAD)


def test_whole_experts_are_for_models_that_have_some(config: ModelConfig) -> None:
    blocks = config.decoder.blocks[:DENSE]
    dense = replace(config, decoder=replace(config.decoder, blocks=blocks))
    with pytest.raises(OperatorError, match="--expert-parallel needs a model with experts"):
        estimate(dense, replace(OPTIONS, settings=ModelSettings(expert_parallel=True)), LOAD)
