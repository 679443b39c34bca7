"""The time of all pipeline stages on several hosts, from the times of each."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from numaserve.configs import efficiencies
from numaserve.workers.bench.shapes import SHAPES
from numaserve.workers.models.load import load_model_config
from numaserve.workers.planning.estimate import Load
from numaserve.workers.planning.links import Link
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.pipeline import PipelineEstimate, StageHost, make_pipeline_estimate
from numaserve.workers.planning.roofline.efficiency import load_efficiencies
from numaserve.workers.planning.roofline.machine import load_machine

NO_TIME = Link(1e12, 0.0)
ENCRYPTED_S = 16 * 4 * 64 / 1.1e9  # of a chunk of 16 tokens in 64 columns


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> PipelineEstimate:
    """Two stages, prompts of four chunks and two cohorts of one sequence."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(SHAPES["tiny"].config()))
    options = DeploymentOptions(str(folder), 2, 16, 0.85, 60.0, tp=1, pp=2)
    machine = load_machine("6980p")
    host = StageHost(options, machine.topology(), machine, load_efficiencies(efficiencies()["amx"]))
    return make_pipeline_estimate([host, host], load_model_config(folder), load=Load(64, 8, 2), link=NO_TIME)


def with_times(made: PipelineEstimate, chunks: Sequence[float], decodes: Sequence[float]) -> PipelineEstimate:
    """The estimate with stages whose chunks and decode steps take these seconds."""
    stages = []
    for stage, chunk, decode in zip(made.stages, chunks, decodes, strict=True):
        assert stage.decode is not None
        prefill = replace(stage.prefill, seconds=4 * chunk, step_seconds=[chunk] * 4)
        stages.append(replace(stage, prefill=prefill, decode=replace(stage.decode, seconds=decode)))
    return replace(made, stages=stages)


def test_chunks_follow_each_other_through_the_hosts(made: PipelineEstimate) -> None:
    assert made.chunks == [16] * 4
    for chunks, seconds in (((3.0, 3.0), 5 * 3.0), ((1.0, 4.0), 1 + 4 * 4.0), ((4.0, 1.0), 4 * 4.0 + 1)):
        found = with_times(made, chunks, (1.0, 1.0))
        assert found.prompt_s == pytest.approx(seconds, abs=1e-3)
        assert found.ttft_s == pytest.approx(seconds + 4 * max(chunks), abs=1e-3)
        assert found.prefill_tokens_s == pytest.approx(64 / (4 * max(chunks)), rel=1e-3)
    # A link on which a chunk is sent in 16 s, with 2 s of latency, also for the sample that comes back.
    slow = replace(with_times(made, (3.0, 3.0), (1.0, 1.0)), link=Link(16 * 4 * 64 * 8e-9 / 16, 2e6))
    assert slow.prompt_s == pytest.approx(3 + 4 * 16 + 2 + 3 + 2 + 2 * ENCRYPTED_S)
    assert slow.prefill_tokens_s == pytest.approx(1.0)


def test_tokens_wait_for_the_slowest_host_or_for_all_of_them(made: PipelineEstimate) -> None:
    assert made.cohorts == 2
    assert with_times(made, (1.0, 1.0), (3.0, 5.0)).tpot_s == 10.0
    slow = replace(with_times(made, (1.0, 1.0), (3.0, 5.0)), link=Link(1e12, 2e6))
    assert slow.hops_s == pytest.approx(4.0)  # the rows, and the sample
    assert slow.tpot_s == slow.pass_s == pytest.approx(12.0)
