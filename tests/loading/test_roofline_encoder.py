"""The estimate of a model that computes each prompt in one step."""

from dataclasses import replace

from numaserve.configs import efficiencies
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.deployment import make_deployment
from numaserve.workers.planning.estimate import Estimate, Load, make_estimate
from numaserve.workers.planning.roofline.efficiency import load_efficiencies
from numaserve.workers.planning.roofline.machine import load_machine

from tests.support.configured import bidirectional, configured
from tests.support.machines import OPTIONS

POOLED = replace(OPTIONS, max_running_requests=8, settings=ModelSettings(pooled=True))
PROMPT = 2048
ENCODER, DECODER = bidirectional(max_position_embeddings=8192).pooled(), configured().pooled()


def estimate(model: ModelConfig, prompt: int = PROMPT) -> Estimate:
    machine = load_machine("6980p")
    return make_estimate(
        POOLED,
        model,
        machine.topology(),
        machine=machine,
        efficiencies=load_efficiencies(efficiencies()[machine.isa]),
        load=Load(prompt, 0, 1),
    )


def test_a_prompt_reads_the_weights_once_and_not_for_each_chunk() -> None:
    whole, chunked, one_chunk = estimate(ENCODER), estimate(DECODER), estimate(ENCODER, 512)
    calls = [{cost.name: cost.calls for cost in each.prefill.costs} for each in (whole, chunked, one_chunk)]
    assert calls[0] == calls[2]
    assert calls[0]["pool"] == 1
    assert calls[1] == {name: 4 * count for name, count in calls[0].items()}
    assert whole.ttft_s < chunked.ttft_s


def test_memory_is_that_of_one_step_of_the_planned_context() -> None:
    on_nodes, planned = (
        estimate(ENCODER).memory,
        make_deployment(replace(POOLED, context_length=PROMPT), ENCODER, load_machine("6980p").topology()),
    )
    assert planned.capacity.num_pages == PROMPT // PAGE_SIZE + 1
    assert sum(node.kv_cache for node in on_nodes) == sum(rank.kv_bytes for rank in planned.ranks)
    assert sum(node.scratch for node in on_nodes) == sum(rank.scratch_bytes for rank in planned.ranks)
