"""Weights from the cache are the checkpoint's: the same bits, whatever happened while they were written."""

import os
import signal
import time
from pathlib import Path

import pytest
from numaserve.workers.interface.protocol import WeightsCache
from numaserve.workers.interface.settings import AS_PUBLISHED, BF16_WEIGHTS, WeightFormats

from tests.support.chat_model import MODEL, write_model
from tests.support.real_server import PATIENCE_S, RealServer
from tests.support.same_bits import (
    MXFP4_MODEL,
    QUANTIZED,
    TINY_MODELS,
    make_group,
    random_requests,
    save_tiny_model,
    scheduler_config,
)
from tests.support.traffic import Answer, each_alone

ON = ("--weights-cache-gib", "1", "--kv-cache-gib", "0.1")
SETTLED_S = 2.1  # a checkpoint that is younger is not cached
FEED_FORWARD = 16_384  # 50 MB of weights, so many that a server can end while it writes them


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


def is_written(folder: Path, ranks: int) -> bool:
    """Whether every rank's file, and nothing else, is there."""
    return [name.partition(".")[2] for name in names(folder)] == [f"{rank}of{ranks}" for rank in range(ranks)]


def wait_until_written(folder: Path, ranks: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_written(folder, ranks):
        assert time.monotonic() < end, names(folder)
        time.sleep(0.01)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All tiny models in the order of the tests, and a model that a server can serve: each settles while the next ones
    are written or tested."""
    tiny = dict.fromkeys((*TINY_MODELS, MXFP4_MODEL))
    paths = {name: save_tiny_model(name, tmp_path_factory.mktemp(name)) for name in tiny}
    return paths | {MODEL: write_model(tmp_path_factory.mktemp("chat"), feed_forward=FEED_FORWARD)}


def settled(path: Path) -> Path:
    """Wait until a checkpoint is old enough."""
    changed = max(file.stat().st_ctime for file in path.iterdir())
    time.sleep(max(0.0, changed + SETTLED_S - time.time()))
    return path


@pytest.fixture(scope="module", params=TINY_MODELS)
def model(request: pytest.FixtureRequest, models: dict[str, Path]) -> Path:
    return settled(models[request.param])


@pytest.mark.spread("formats")
@pytest.mark.parametrize("formats", [BF16_WEIGHTS, *QUANTIZED[:2]], ids=["bf16", "int8", "int4"])
@pytest.mark.parametrize("tp", [1, 2])
def test_the_second_start_changes_no_bit(tp: int, formats: WeightFormats, model: Path, tmp_path: Path) -> None:
    requests = random_requests()[::3]
    answers: list[list[Answer]] = []
    for origin in ("checkpoint", "cache"):
        with make_group(model, tp, formats=formats, weights_cache=WeightsCache(str(tmp_path), 1 << 30)) as group:
            assert [ready.weights_from for ready in group.ready] == [origin] * tp
            answers.append(each_alone(group, scheduler_config(), requests))
            wait_until_written(tmp_path, tp)
    assert answers[0] == answers[1]


@pytest.mark.parametrize(("name", "formats"), [("qwen2_moe", BF16_WEIGHTS), (MXFP4_MODEL, AS_PUBLISHED)])
def test_whole_experts_are_cached_apart_from_columns_of_all(
    name: str, formats: WeightFormats, models: dict[str, Path], tmp_path: Path
) -> None:
    requests, cache = random_requests()[::5], WeightsCache(str(tmp_path / "packed"), 1 << 30)
    answers: list[list[Answer]] = []
    for expert_parallel, origin in ((False, "checkpoint"), (True, "checkpoint"), (True, "cache")):
        with make_group(
            settled(models[name]), 2, formats=formats, weights_cache=cache, expert_parallel=expert_parallel
        ) as group:
            assert [ready.weights_from for ready in group.ready] == [origin] * 2
            answers.append(each_alone(group, scheduler_config(), requests))
            end = time.monotonic() + PATIENCE_S
            while sum(each.endswith("of2") for each in names(tmp_path / "packed")) < (4 if expert_parallel else 2):
                assert time.monotonic() < end
                time.sleep(0.01)
    assert answers[1] == answers[2]


def answer(server: RealServer) -> object:
    """Text and exact log-probabilities."""
    return server.complete("The capital of France is", 16, logprobs=5).json()["choices"][0]


def origins(server: RealServer) -> list[str]:
    return [worker["weights_from"] for worker in server.info()["workers"]]


@pytest.mark.parametrize("tp", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_server_that_was_killed_leaves_the_cache_in_order(tp: int, models: dict[str, Path], tmp_path: Path) -> None:
    model, folder, options = str(settled(models[MODEL])), tmp_path / "numaserve" / "packed", (*ON, "--tp", str(tp))
    with RealServer(*options, model=model, cache=tmp_path) as server:
        assert origins(server) == ["checkpoint"] * tp
        os.kill(server.process.pid, signal.SIGKILL)  # in the middle of a write, or before one
    with RealServer(*options, model=model, cache=tmp_path) as server:
        first = answer(server)
        wait_until_written(folder, tp)
        assert server.terminate() == 0
    with RealServer(*options, model=model, cache=tmp_path) as server:
        assert origins(server) == ["cache"] * tp
        assert answer(server) == first
        assert "weights from the cache" in server.log.read_text()
        # A worker that is replaced takes its weights from there too.
        os.kill(server.worker_pids()[0], signal.SIGKILL)
        server.until(lambda: not server.is_ready())
        server.until(server.is_ready)
        assert origins(server) == ["cache"] * tp
        assert answer(server) == first
    assert is_written(folder, tp)


def test_a_server_that_ends_while_it_writes_leaves_nothing_unfinished(models: dict[str, Path], tmp_path: Path) -> None:
    with RealServer(*ON, model=str(settled(models[MODEL])), cache=tmp_path) as server:
        assert server.terminate() == 0
    assert not any(name.endswith(".part") for name in names(tmp_path / "numaserve" / "packed"))


def test_two_servers_that_start_at_once_share_one_cache(models: dict[str, Path], tmp_path: Path) -> None:
    model = str(settled(models[MODEL]))
    with (
        RealServer(*ON, model=model, cache=tmp_path) as one,
        RealServer(*ON, model=model, cache=tmp_path) as other,
    ):
        assert answer(one) == answer(other)
        wait_until_written(tmp_path / "numaserve" / "packed", 1)
