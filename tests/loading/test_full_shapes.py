"""Estimates of large models on two Xeon 6980P: six ranks of 43 and 42 threads, counted over all layers."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numaserve.configs import efficiencies
from numaserve.workers.bench.hybrid_shapes import HYBRID_SHAPES
from numaserve.workers.interface.settings import AS_PUBLISHED, ModelSettings, WeightFormats
from numaserve.workers.models.load import load_model_config
from numaserve.workers.planning.estimate import Estimate, Load, make_estimate
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.roofline.efficiency import load_efficiencies
from numaserve.workers.planning.roofline.machine import load_machine

from tests.support.full_shapes import DEEPSEEK_R1, GPT_OSS_120B, LLAMA_70B, QWEN3_235B

INT8 = WeightFormats("int8")
MODELS: dict[str, tuple[dict[str, Any], WeightFormats]] = {
    "DeepSeek-R1": (DEEPSEEK_R1, INT8),
    "Llama-3.1-70B": (LLAMA_70B, INT8),
    "Qwen3-235B": (QWEN3_235B, INT8),
    "gpt-oss-120b": (GPT_OSS_120B, AS_PUBLISHED),
    "Qwen3.6-35B-A3B": (HYBRID_SHAPES["qwen3.6-35b-a3b"].config(), INT8),
}


MakeEstimate = Callable[..., Estimate]


@pytest.fixture(scope="module")
def estimate(tmp_path_factory: pytest.TempPathFactory) -> MakeEstimate:
    """The estimate of a model by name, of 1024 tokens of input and output, with steps of 2048 tokens. To count the
    work of hundreds of threads takes seconds."""

    @functools.cache
    def made(name: str, skew: float = 0.0) -> Estimate:
        return _estimate(name, tmp_path_factory.mktemp("model"), skew)

    return made


def _estimate(name: str, folder: Path, skew: float) -> Estimate:
    model, formats = MODELS[name]
    (folder / "config.json").write_text(json.dumps(model))
    options = DeploymentOptions(
        model=name,
        max_running_requests=1,
        max_step_tokens=2048,
        mem_fraction_static=0.85,
        step_deadline_s=60.0,
        settings=ModelSettings(formats=formats),
    )
    machine = load_machine("2x6980p")
    return make_estimate(
        options,
        load_model_config(folder),
        machine.topology(),
        machine=machine,
        efficiencies=load_efficiencies(efficiencies()["amx"]),
        load=Load(1024, 1024, 1),
        skew=skew,
    )


# `test_roofline_deepseek.py` does the same with DeepSeek.
@pytest.mark.parametrize(
    "name",
    [
        "Llama-3.1-70B",
        "Qwen3-235B",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt-oss-120b", "Qwen3.6-35B-A3B", "DeepSeek-R1")),
    ],
)
def test_steps_take_longer_than_their_bounds_and_threads_share_their_work(name: str, estimate: MakeEstimate) -> None:
    assert_shared(estimate(name))


def assert_shared(made: Estimate) -> None:
    """Steps take longer than their bounds, and the threads of the host have equal parts of the long operations."""
    assert made.cores == [43, 43, 42, 43, 43, 42]
    assert made.decode is not None
    for phase in (made.prefill, made.decode):
        assert phase.bound_s < phase.seconds
        assert sum(cost.time.seconds for cost in phase.costs) <= phase.seconds
        assert all(cost.time.seconds > cost.bound_s for cost in phase.costs if cost.bound_s)
        long = [cost.time for cost in phase.costs if cost.time.seconds > 0.1 * phase.seconds]
        assert all(time.threads > 0.75 for time in long), [(time.name, time.threads) for time in long]


def test_popular_experts_cost_little(estimate: MakeEstimate) -> None:
    even, skewed = (estimate("Qwen3-235B", *skew).ttft_s for skew in ((), (1.0,)))
    assert skewed < 1.1 * even
