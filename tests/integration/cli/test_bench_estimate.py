"""The estimate of measured steps."""

import json
from pathlib import Path

import pytest
from numaserve.configs import efficiencies
from numaserve.server.cli.bench_estimate import RunEstimate
from numaserve.workers.bench.shapes import SHAPES
from numaserve.workers.bench.tasks import MeasuredPhase
from numaserve.workers.interface.protocol import Ceilings, RankProfile
from numaserve.workers.interface.settings import ModelSettings, WeightFormats
from numaserve.workers.models.load import load_model_config
from numaserve.workers.planning.deployment import make_deployment
from numaserve.workers.planning.estimate import Load, make_estimate
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.roofline.efficiency import load_efficiencies
from numaserve.workers.planning.roofline.machine import Machine

NOTHING = RankProfile(0, 0, 0, 0, 0, [])
INT8 = WeightFormats("int8", activations="bf16")


@pytest.mark.parametrize("tp", [1, 2])
def test_steps_are_estimated_as_a_host_of_those_ceilings_is(tp: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPES["llama-1b"].config()))
    config, known = load_model_config(tmp_path), load_efficiencies(efficiencies()["avx512"])
    options = DeploymentOptions(
        model=str(tmp_path),
        tp=tp,
        max_running_requests=2,
        max_step_tokens=512,
        mem_fraction_static=0.85,
        step_deadline_s=60.0,
        settings=ModelSettings(formats=INT8),
    )
    barrier_us = known.barrier_s * 1e6
    host = Machine(
        name="host",
        node_cores=[8],
        node_memory_gib=64,
        node_read_gb_s=100,
        core_gflop_s={"bf16": 200, "int8": 400},
        link_gb_s=100 / tp,
        meeting_us=4 * barrier_us,
        barrier_us=barrier_us,
    )
    estimate = make_estimate(options, config, host.topology(), machine=host, efficiencies=known, load=Load(1024, 64, 2))
    launch = make_deployment(options, config, host.topology()).launches[0]
    of_run = RunEstimate(launch, config, host.topology(), known, 1024, 64)
    cores = 8 // tp
    ceilings = Ceilings("avx512", cores, 100e9 / tp, {"bf16": 200e9 * cores, "int8": 400e9 * cores})
    for name, seconds in (("prefill", 2 * estimate.prefill.seconds), ("decode", estimate.tpot_s)):
        phases = [MeasuredPhase(name, 2, [1.0], NOTHING, NOTHING, ceilings)] * tp
        assert of_run.seconds(phases) == pytest.approx(seconds)
