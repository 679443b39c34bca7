"""Times of steps of a large model on six ranks of 43 and 42 cores, from the work that their threads count."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from numaserve.configs import efficiencies
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.settings import ModelSettings, WeightFormats
from numaserve.workers.models.load import load_model_config
from numaserve.workers.planning.roofline.efficiency import load_efficiencies
from numaserve.workers.planning.roofline.machine import load_machine
from numaserve.workers.planning.roofline.phases import RankMachine
from numaserve.workers.planning.simulation.counting import CountedGroup
from numaserve.workers.planning.simulation.times import HostTimes, OperationTime, StepTotals
from numaserve.workers.program.cost import StepWork

from tests.support.full_shapes import LLAMA_70B, QWEN3_235B

SIX = (43, 43, 42, 43, 43, 42)
TOKEN, PROMPT = StepWork([(1000, 1)], 1), StepWork([(0, 512)], 1)
LIMITS = Capacity.of_program(max_step_tokens=512, max_logit_rows=16, max_slots=16, pages_per_slot=32, num_pages=33)
INT8 = ModelSettings(formats=WeightFormats("int8"))


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountedGroup]:
    with two_layers(LLAMA_70B, tmp_path_factory.mktemp("llama")) as made:
        yield made


def two_layers(model: Mapping[str, object], folder: Path, skew: float = 0.0) -> CountedGroup:
    (folder / "config.json").write_text(json.dumps(dict(model) | {"num_hidden_layers": 2}))
    config = load_model_config(folder)
    return CountedGroup(config.decoder, config.partition(SIX, INT8), LIMITS, 4 * 512 * 8192, skew)


@pytest.fixture(scope="module")
def times() -> HostTimes:
    machine = load_machine("2x6980p")
    ranks = [RankMachine(machine, cores, machine.node_read_gb_s * 1e9) for cores in SIX]
    return HostTimes(ranks, load_efficiencies(efficiencies()["amx"]))


def of_name(totals: StepTotals, name: str) -> OperationTime:
    """The time of the operations of a name on the rank with most to do."""
    return next(totals.operation(*key, totals.busiest) for key in totals.names(totals.busiest) if key[0] == name)


def test_a_token_takes_at_least_what_its_weights_take_to_be_read(group: CountedGroup, times: HostTimes) -> None:
    totals = times.of(group, TOKEN)
    up, down = 2 * 2 * 28672 * 8192, 2 * 8192 * (28672 + 8192)
    bounds = {"gate_up": up / 6 / 241e9, "linear_partial": down / 6 / 241e9}
    assert all(bound < of_name(totals, name).seconds < 1.5 * bound for name, bound in bounds.items())


def test_ranks_have_nearly_equal_parts_of_heads(group: CountedGroup, times: HostTimes) -> None:
    assert of_name(times.of(group, TOKEN), "linear").ranks > 0.97  # 10 or 11 of 64


def test_ranks_wait_for_those_with_most_heads(times: HostTimes, tmp_path: Path) -> None:
    with two_layers(QWEN3_235B, tmp_path) as group:
        totals = times.of(group, TOKEN)
    assert totals.waiting_s > 0
    # Two ranks have one of four KV heads each, with 16 query heads. The others have half of these for a KV head.
    most, others = 16 + 2, 8 + 2
    assert of_name(totals, "linear").ranks == pytest.approx((2 * most + 4 * others) / 6 / most, rel=0.02)


def test_half_the_bandwidth_makes_reading_twice_as_long(group: CountedGroup, times: HostTimes) -> None:
    halved = times.ranks[0].machine.model_copy(update={"core_read_gb_s": 7.5})
    ranks = [replace(rank, machine=halved, read_bytes_s=rank.read_bytes_s / 2) for rank in times.ranks]
    slow = replace(times, ranks=ranks)
    found = [of_name(host.of(group, TOKEN), "gate_up").seconds for host in (times, slow)]
    fixed = max(times.ranks[0].machine.barrier_us * 1e-6 - times.efficiencies.barrier_s, 0.0) * 2  # of two layers
    before, after = (seconds - fixed for seconds in found)
    assert after == pytest.approx(2 * before)


def test_collectives_and_barriers_are_counted(group: CountedGroup, times: HostTimes) -> None:
    reduce = of_name(times.of(group, TOKEN), "add_all_reduce")
    assert reduce.meetings == 1 + 2 * 2  # after the embedding, and twice a layer
    assert reduce.remote == 5 * 8192 * 4 * reduce.meetings  # the parts of the five other ranks


def test_large_sums_read_two_shares_of_each_other_rank(group: CountedGroup, times: HostTimes) -> None:
    few, many = (StepWork([(100, 1)] * rows, rows) for rows in (1, 16))
    of_few, of_many = (of_name(times.of(group, step), "add_all_reduce").remote for step in (few, many))
    # Five parts of a row; of sixteen rows a sixth of each part, and the sums of the five other sixths.
    assert of_many == pytest.approx(16 * of_few * (2 / 6), rel=1e-2)


def test_sums_of_a_prompt_overlap_their_products(group: CountedGroup) -> None:
    # The last layer's MLP has one row, of the prompt's last token.
    for step, joined in ((TOKEN, 0), (PROMPT, 3)):
        joining = [phase for phase in group.step(step)[0] if phase.joins_next]
        costs = {index: cost for index, cost in enumerate(group.costs[0]) if cost is not None}
        after = [costs[phase.index + 1].amount(step).overlapped for phase in joining]
        assert [costs[phase.index].name for phase in joining] == ["linear_partial"] * joined
        assert all(0.5 < fraction < 1.0 for fraction in after)
        # Lanes alone multiply: a 43rd thread has nothing to do.
        assert all(phase.threads[42].flops == 0 < phase.threads[41].flops for phase in joining)
        assert sum(cost.amount(step).overlapped > 0 for cost in costs.values()) == len(joining)


def test_an_overlapped_sum_takes_less_time(group: CountedGroup, times: HostTimes) -> None:
    totals = times.of(group, PROMPT)
    product, reduce = of_name(totals, "linear_partial"), of_name(totals, "add_all_reduce")
    link = reduce.remote / (times.ranks[0].machine.link_gb_s * 1e9)
    assert product.barriers == 1  # of the last layer's MLP
    assert link < product.seconds + reduce.seconds < link + product.seconds


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_popular_experts_leave_no_thread_idle(skew: float, tmp_path: Path, times: HostTimes) -> None:
    with two_layers(QWEN3_235B, tmp_path, skew) as group:
        totals = times.of(group, PROMPT)
    assert all(of_name(totals, name).threads > 0.9 for name in ("moe_gate_up", "moe_down"))
