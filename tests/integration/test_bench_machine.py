"""`numaserve bench ring`, `offline` and `load` on real ranks, with sizes that take no time."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from numaserve.server.cli import bench_offline
from numaserve.server.cli.main import main
from numaserve.shm_comm.segment import create_segment
from numaserve.workers.bench import group
from numaserve.workers.bench.group import RankFailed, run_ranks
from numaserve.workers.bench.operations import ring
from numaserve.workers.bench.tasks import Loaded, LoadModel, Reduced, RunSteps, Task, UseRing
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import Launch
from numaserve.workers.planning.roofline.machine import Machine

QUICK_RANK = Path(__file__).with_name("quick_rank.py")
TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
# One thread a rank: two that wait for each other by turning in circles take long where others want the cores, too.
STEPS = (
    *("offline", "--shape", "tiny", "--input-len", "40", "--output-len", "5"),
    *("--chunked-prefill-size", "16", "--threads-per-worker", "1"),
)


@pytest.fixture
def _quick_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "_COMMAND", (sys.executable, str(QUICK_RANK)))


def bench(file: Path, *arguments: str) -> list[dict[str, Any]]:
    """The JSON lines of a run that ends with status 0."""
    with pytest.raises(SystemExit) as caught:
        main(["bench", *arguments, "--json", str(file)])
    assert caught.value.code == 0
    return [json.loads(line) for line in file.read_text().splitlines()]


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["bench", *arguments])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.usefixtures("_quick_ceilings")
def test_steps_of_every_batch_size_are_beside_their_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = bench(tmp_path / "out", *STEPS, "--batch-size", "1", "--batch-size", "3", "--prefills", "2")
    steps = [line for line in lines if line["table"] == "steps"]
    assert [(line["phase"], line["batch"], line["context"]) for line in steps] == [
        ("prefill", 1, 40),
        ("decode", 1, 42),
        ("prefill", 3, 40),
        ("decode", 3, 42),
    ]
    assert all(line["of_bound"] > 0 and 0 < line["share_native"] <= 1 for line in steps)
    # Operations take what is measured of their bounds, and steps more than operations.
    assert all(line["planned_ms"] > line["bound_ms"] for line in steps)
    assert all(line["of_planned"] == pytest.approx(line["best_ms"] / line["planned_ms"]) for line in steps)
    operations = [line for line in lines if line["table"] == "operations"]
    # Chunks of 16 tokens: three steps a prompt, each prompt twice; the first token after a prompt is not counted.
    assert [(line["name"], line["steps"]) for line in operations] == [
        ("prefill", 2 * 3),
        ("decode", 4),
        ("prefill", 2 * 3 * 3),
        ("decode", 4),
    ]
    assert {"linear", "attention", "lm_head"} <= {cost["name"] for cost in operations[1]["costs"]}
    out = capsys.readouterr().out
    assert "decode, rank 0: 4 steps of 3 tokens" in out
    assert "of ceiling" in out


@TWO_CORES
@pytest.mark.usefixtures("_quick_ceilings")
def test_two_ranks_tell_waiting_from_moving(tmp_path: Path) -> None:
    lines = bench(tmp_path / "out", *STEPS, "--tp", "2", "--quantization", "int8", "--no-operations")
    assert [(line["rank"], line["name"]) for line in lines if line["table"] == "operations"] == [
        (0, "prefill"),
        (1, "prefill"),
        (0, "decode"),
        (1, "decode"),
    ]
    for line in lines[-2:]:
        assert (line["weights"], line["tp"]) == ("int8, head as published", 2)
        assert 0 < line["share_moving"] < 1
        assert 0 <= line["share_waiting_least"] <= line["share_waiting_most"] < 1


def test_loading_is_beside_reading(tmp_path: Path) -> None:
    lines = bench(tmp_path / "out", "load", "--shape", "tiny", "--tp", "1")
    assert [(line["start"], line["weights_from"]) for line in lines] == [("first", "checkpoint"), ("second", "cache")]
    for line in lines:
        assert line["load_over_read"] == pytest.approx(line["best_s"] / line["read_s"])
        assert line["weights_gb"] == pytest.approx(line["files_gb"], rel=0.2)


@TWO_CORES
def test_the_ring_gives_a_row_for_each_size(tmp_path: Path) -> None:
    lines = bench(tmp_path / "out", "ring", "--quick", "--no-gloo", "--size", "64", "--size", "4096")
    assert [(line["ranks"], line["bytes"]) for line in lines] == [(2, 64), (2, 4096)]
    assert all(line["ring_us"] > 0 and line["barrier_us"] > 0 and "gloo_us" not in line for line in lines)


@TWO_CORES
def test_without_torch_the_ring_is_measured_alone_and_the_report_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Task] = []

    def reduced(tasks: Sequence[Task], *_: object) -> list[Reduced]:
        measured.extend(tasks)
        return [Reduced(1e9, [{"ring": 2.0, "barrier": 1.0}])] * len(tasks)

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(ring, "run_ranks", reduced)
    (line,) = bench(tmp_path / "out", "ring", "--quick", "--size", "64")
    assert line["ring_us"] > 0 and "gloo_us" not in line
    assert [task.store for task in measured] == [None, None]
    assert "run `pip install torch`" in capsys.readouterr().out


@pytest.mark.usefixtures("_quick_ceilings")
def test_steps_have_the_estimated_size_where_none_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that reads slowly: two steps of a prompt would read the weights twice."""
    slow = Machine(
        name="slow", node_cores=[2], node_memory_gib=8, node_read_gb_s=0.01,
        core_gflop_s={"bf16": 1000, "int8": 1000}, link_gb_s=1, meeting_us=1, barrier_us=1,
    )  # fmt: skip
    monkeypatch.setattr(bench_offline, "_measured", lambda _: slow)
    ran: list[Launch] = []

    def launched(tasks: list[RunSteps], *rest: Any) -> Any:
        ran.extend(task.launch for task in tasks)
        return group.run_ranks(tasks, *rest)

    monkeypatch.setattr(bench_offline, "run_ranks", launched)
    lengths = ("--input-len", "600", "--output-len", "2", "--prefills", "1", "--threads-per-worker", "1")
    bench(tmp_path / "out", "offline", "--shape", "tiny", *lengths)
    assert "steps of at most 1024 tokens, chosen from 512 and 1024" in " ".join(capsys.readouterr().out.split())
    bench(tmp_path / "out", "offline", "--shape", "tiny", *lengths, "--chunked-prefill-size", "300")
    assert "chosen from" not in capsys.readouterr().out
    assert [launch.capacity.max_step_tokens for launch in ran] == [1024, 300]


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "--size must be a multiple of 4 bytes" in mistake(capsys, "ring", "--size", "6")
    assert "name either a MODEL or a shape" in mistake(capsys, "offline")
    assert "name either a MODEL or a shape" in mistake(capsys, "load", "demo", "--shape", "tiny")
    assert "--format x: expected bf16" in mistake(capsys, "kernels", "--format", "x")
    assert "cannot write --json" in mistake(capsys, "load", "--shape", "tiny", "--json", str(tmp_path / "no" / "file"))
    assert "--context-length 2105 exceeds the model's limit of 2048 tokens: lower the option" in mistake(
        capsys, "offline", "--shape", "tiny", "--input-len", "2100", "--output-len", "5"
    )


def test_a_rank_that_dies_ends_its_peers() -> None:
    """Rank 1 knows another nonce and ends at once; rank 0 would wait for it."""
    cpu = sorted(os.sched_getaffinity(0))[0]
    with create_segment(2, lanes=1, slot_bytes=4096) as segment:
        tasks: list[Task] = [
            UseRing(rank, 2, cpu, 0, segment.fd, segment.nonce + rank, [64], 0.01, None) for rank in (0, 1)
        ]
        with pytest.raises(RankFailed, match="rank 1 exited with status 1 before it answered"):
            run_ranks(tasks, Reduced, segment, lambda _: None)


def test_what_a_rank_cannot_load_is_told_in_its_words(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="nothing"):
        run_ranks([LoadModel(_launch(tmp_path / "nothing"))], Loaded, None, lambda _: None)


def _launch(path: Path) -> Launch:
    cpu = sorted(os.sched_getaffinity(0))[0]
    return Launch(0, 1, str(path), [[cpu]], [0], [1], Capacity.of_program(16, 64, 1, 1, 2), -1, 0, 5.0)
