"""Steps of a whole model from a few of its layers, compared with programs that have all layers."""

import json
from pathlib import Path

import pytest
from numaserve.configs import efficiencies
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.settings import ModelSettings, WeightFormats
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.roofline.efficiency import load_efficiencies
from numaserve.workers.planning.roofline.machine import load_machine
from numaserve.workers.planning.roofline.phases import RankMachine
from numaserve.workers.planning.simulation.counting import CountedGroup
from numaserve.workers.planning.simulation.layers import CountedModel
from numaserve.workers.planning.simulation.times import HostTimes
from numaserve.workers.program.cost import StepWork
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from tests.support.families.table import FAMILIES
from tests.support.full_shapes import DEEPSEEK_R1, LLAMA_70B

TWO = (5, 4)
LIMITS = Capacity.of_program(max_step_tokens=512, max_logit_rows=2, max_slots=2, pages_per_slot=64, num_pages=65)
INT8 = ModelSettings(formats=WeightFormats("int8"))
SLOT_BYTES = 4 * 512 * 8192
STEPS = [StepWork([(0, 300)], 1), StepWork([(1500, 1), (3, 1)], 2)]


@pytest.fixture(scope="module")
def times() -> HostTimes:
    machine = load_machine("2x6980p")
    ranks = [RankMachine(machine, cores, rate) for cores, rate in zip(TWO, (28e9, 22e9), strict=True)]
    return HostTimes(ranks, load_efficiencies(efficiencies()["amx"]))


def config_of(folder: Path, model: dict[str, object], layers: int) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(model | {"num_hidden_layers": layers}))
    return load_model_config(folder)


@pytest.mark.parametrize("work", STEPS, ids=["prompt", "tokens"])
def test_layers_of_one_kind_take_the_same_time(tmp_path: Path, times: HostTimes, work: StepWork) -> None:
    config = config_of(tmp_path, LLAMA_70B, 6)
    partition = config.partition(TWO, INT8)
    with (
        CountedModel(config, partition, LIMITS, SLOT_BYTES) as few,
        CountedGroup(config.decoder, partition, LIMITS, SLOT_BYTES) as whole,
    ):
        found, expected = few.step(work, times), times.of(whole, work)
    assert found.seconds == pytest.approx(expected.seconds)
    assert found.waiting_s == pytest.approx(expected.waiting_s)
    assert found.names(0) == expected.names(0)
    for key in found.names(0):
        each, other = (totals.operation(*key, 0) for totals in (found, expected))
        assert (each.barriers, each.meetings, each.remote) == (other.barriers, other.meetings, other.remote)
        assert each.seconds == pytest.approx(other.seconds)


def test_kinds_of_layers_are_told_apart(tmp_path: Path, times: HostTimes) -> None:
    """Three layers of R1 are dense, the others mixtures. Each node routes otherwise, so experts may differ a little."""
    config = config_of(tmp_path, DEEPSEEK_R1 | {"num_nextn_predict_layers": 0}, 8)
    partition = config.partition(TWO, INT8)
    with (
        CountedModel(config, partition, LIMITS, SLOT_BYTES) as few,
        CountedGroup(config.decoder, partition, LIMITS, SLOT_BYTES) as whole,
    ):
        found, expected = few.step(STEPS[0], times), times.of(whole, STEPS[0])
    assert found.seconds == pytest.approx(expected.seconds, rel=0.02)
    barriers = [{key: totals.operation(*key, 0).barriers for key in totals.names(0)} for totals in (found, expected)]
    assert barriers[0] == barriers[1]


@pytest.mark.parametrize("name", ["gemma4", "qwen3_5", "granite4-h"])
@pytest.mark.parametrize("work", [StepWork([(0, 40)], 1), StepWork([(30, 1), (3, 1)], 2)], ids=["prompt", "tokens"])
def test_layers_that_borrow_a_cache_or_keep_states_are_counted(
    name: str, work: StepWork, tmp_path: Path, times: HostTimes
) -> None:
    model = FAMILIES[name].config()
    model.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING[type(model)].__name__]
    model.save_pretrained(tmp_path)
    config = load_model_config(tmp_path)
    partition, settings = config.partition(TWO, ModelSettings()), (LIMITS, SLOT_BYTES)
    with CountedModel(config, partition, *settings) as few, CountedGroup(config.decoder, partition, *settings) as whole:
        found, expected = few.step(work, times), times.of(whole, work)
    assert found.seconds == pytest.approx(expected.seconds, rel=1e-6)
    assert found.names(0) == expected.names(0)
