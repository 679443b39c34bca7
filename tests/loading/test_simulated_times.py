"""Times of steps of a large model on six ranks of 43 and 42 cores, from the work that their threads count."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from numaserve.configs import efficiencies
from numaserve.workers.interface.settings import ModelSettings, WeightFormats
from numaserve.workers.models.load import load_model_config
from numaserve.workers.planning.roofline.efficiency import load_efficiencies
from numaserve.workers.planning.roofline.machine import load_machine
from numaserve.workers.planning.roofline.phases import RankMachine
from numaserve.workers.planning.simulation.counting import CountedGroup
from numaserve.workers.planning.simulation.times import HostTimes
from numaserve.workers.program.cost import StepWork
from numaserve.workers.program.setup import ProgramLimits

from tests.support.full_shapes import LLAMA_70B

SIX = (43, 43, 42, 43, 43, 42)
TOKEN = StepWork([(1000, 1)], 1)
LIMITS = ProgramLimits(max_step_tokens=512, max_logit_rows=1, max_slots=1, pages_per_slot=32, num_pages=33)
INT8 = ModelSettings(formats=WeightFormats("int8"))


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountedGroup]:
    folder = tmp_path_factory.mktemp("llama")
    (folder / "config.json").write_text(json.dumps(LLAMA_70B | {"num_hidden_layers": 2}))
    config = load_model_config(folder)
    with CountedGroup(config, config.partition(SIX, INT8), LIMITS, 4 * 512 * 8192) as made:
        yield made


@pytest.fixture(scope="module")
def times() -> HostTimes:
    machine = load_machine("2x6980p")
    ranks = [RankMachine(machine, cores, machine.node_read_gb_s * 1e9) for cores in SIX]
    return HostTimes(ranks, load_efficiencies(efficiencies()["amx"]))


def test_a_token_takes_at_least_what_its_weights_take_to_be_read(group: CountedGroup, times: HostTimes) -> None:
    step = times.of(group, TOKEN).report()
    products = {each.name: each.seconds for each in step.operations if each.name in ("gate_up", "linear_partial")}
    up, down = 2 * 2 * 28672 * 8192, 2 * 8192 * (28672 + 8192)
    bounds = {"gate_up": up / 6 / 241e9, "linear_partial": down / 6 / 241e9}
    assert all(bounds[name] < seconds < 1.5 * bounds[name] for name, seconds in products.items())
    assert len(products) == 2


def test_ranks_wait_for_the_one_with_most_heads(group: CountedGroup, times: HostTimes) -> None:
    step = times.of(group, TOKEN).report()
    qkv = next(each for each in step.operations if each.name == "linear")
    assert step.waiting_s > 0
    assert qkv.ranks == pytest.approx(8 / 6 / 2, rel=0.02)  # eight KV heads on six ranks, two on some


def test_half_the_bandwidth_makes_reading_twice_as_long(group: CountedGroup, times: HostTimes) -> None:
    slow = replace(times, ranks=[replace(rank, read_bytes_s=rank.read_bytes_s / 2) for rank in times.ranks])
    of_name = [
        {each.name: each.seconds for each in host.of(group, TOKEN).report().operations} for host in (times, slow)
    ]
    fixed = max(times.ranks[0].machine.barrier_us * 1e-6 - times.efficiencies.barrier_s, 0.0) * 2  # of two layers
    before, after = (found["gate_up"] - fixed for found in of_name)
    assert after == pytest.approx(2 * before)


def test_collectives_and_barriers_are_counted(group: CountedGroup, times: HostTimes) -> None:
    reduce = next(each for each in times.of(group, TOKEN).report().operations if each.name == "add_all_reduce")
    assert reduce.meetings == 1 + 2 * 2  # after the embedding, and twice a layer
    assert reduce.remote == 5 * 8192 * 4 * reduce.meetings  # the parts of the five other ranks
