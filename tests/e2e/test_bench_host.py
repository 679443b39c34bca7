"""`numaserve bench host` with a tiny model, and a host that is described."""

import json
from pathlib import Path
from typing import Any

import pytest
from numaserve.server.cli.main import main
from numaserve.server.loadtest import rate_search
from numaserve.workers.bench import mlperf, published
from numaserve.workers.bench.mlperf import MlperfTask
from numaserve.workers.bench.published import Publication

from tests.support.chat_model import CONTEXT, HIDDEN, LAYERS, MODEL, write_model
from tests.support.tokenizer_builders import byte_level_backend

HOST = """
name: one node
node-cores: [1]
node-memory-gib: 64
node-read-gb-s: 10
core-gflop-s: {bf16: 100, int8: 200}
link-gb-s: 10
meeting-us: 1
barrier-us: 1
"""
SIZES = {
    "architecture": "LlamaForCausalLM",
    "hidden-size": HIDDEN,
    "layers": LAYERS[MODEL],
    "vocab-size": byte_level_backend().get_vocab_size(),
}
FIGURES = {"host": "8592+", "weights": "int8", "ttft-ms": 12.5, "tpot-ms": 3.5}
PUBLICATION = {
    "source": "nowhere",
    "server": "Another",
    "input-len": 1024,
    "output-len": 128,
    "models": [{"name": "Tiny", "sizes": SIZES, "figures": [FIGURES]}],
}
SMALL = ("--tp", "1", "--threads-per-worker", "1", "--kv-cache-gib", "0.05", "--input-len", "24", "--output-len", "4")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("bench")))


@pytest.fixture
def host(tmp_path: Path) -> str:
    path = tmp_path / "host.yaml"
    path.write_text(HOST)
    return str(path)


def bench(model: str, file: Path, *arguments: str) -> list[dict[str, Any]]:
    """The JSON lines of a run that ends with status 0."""
    with pytest.raises(SystemExit) as caught:
        main(["bench", "host", model, *SMALL, *arguments, "--json", str(file)])
    assert caught.value.code == 0
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_measurement_is_next_to_the_estimate_and_to_published_figures(
    model: str, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(published, "publications", lambda: [Publication.model_validate(PUBLICATION)])
    rows = bench(model, tmp_path / "out", "--host", host, "--num-prompts", "2", "--no-server-scenario")
    measured, estimate, bound, other = rows
    assert [row["figures"] for row in rows] == ["measured", "estimate", "lower bound", "published"]
    assert {row["model"] for row in rows[:3]} == {MODEL}
    assert {(row["server"], row["host"], row["input_len"], row["output_len"]) for row in rows[:3]} == {
        ("numaserve", "one node", 24, 4)
    }
    assert estimate["ttft_ms"] > bound["ttft_ms"] > 0 and estimate["tpot_ms"] > bound["tpot_ms"] > 0
    assert measured["of_planned_ttft"] == pytest.approx(measured["ttft_ms"] / estimate["ttft_ms"])
    assert measured["of_planned_tpot"] == pytest.approx(measured["tpot_ms"] / estimate["tpot_ms"])
    # On busy cores the client may read all tokens of an answer at once, and then the time between them is 0.
    assert measured["ttft_ms"] > 0 and measured["tpot_ms"] >= 0
    assert (other["server"], other["model"], other["host"], other["weights"]) == (
        *("Another", "Tiny", "Xeon 8592+, DDR5-5600", "int8"),
    )
    assert (other["input_len"], other["output_len"], other["ttft_ms"], other["tpot_ms"]) == (1024, 128, 12.5, 3.5)
    out = capsys.readouterr().out
    assert "one request at a time" in out and "published" in out


def limit_to(monkeypatch: pytest.MonkeyPatch, ms: float) -> None:
    """Give every model a task with this limit of all latencies."""
    task = MlperfTask.model_validate({"name": "any", "ttft-ms": ms, "tpot-ms": ms, "source": "nowhere"})
    monkeypatch.setattr(mlperf, "task_of", lambda _config, _name: task)


def test_the_highest_rate_within_limits_is_next_to_the_estimated_rate(
    model: str, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def two_rates(keeps: Any, first: float) -> float:
        assert first > 0
        assert await keeps(20.0)
        await keeps(40.0)
        return 20.0

    limit_to(monkeypatch, 1e6)
    monkeypatch.setattr(rate_search, "highest_rate", two_rates)
    rows = bench(model, tmp_path / "out", "--host", host, "--num-prompts", "1", "--duration", "0.2")
    runs = [row for row in rows if row["table"] == "rates"]
    assert [(run["queries_s"], run["queries"], run["failed"], run["within_limits"]) for run in runs] == [
        (20.0, 4, 0, "yes"),
        (40.0, 8, 0, "yes"),
    ]
    measured, estimate = (row for row in rows if row["table"] == "server scenario")
    assert {(row["task"], row["ttft_limit_ms"], row["tpot_limit_ms"]) for row in (measured, estimate)} == {
        ("any", 1e6, 1e6)
    }
    assert (measured["queries_s"], measured["output_tokens_s"]) == (20.0, 80.0)
    assert (measured["ttft_p99_ms"], measured["tpot_p99_ms"]) == (runs[0]["ttft_p99_ms"], runs[0]["tpot_p99_ms"])
    assert estimate["queries_s"] > 0
    assert measured["of_planned"] == pytest.approx(20.0 / estimate["queries_s"])


def test_a_request_that_alone_exceeds_a_limit_has_no_rate(
    model: str, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_to(monkeypatch, 1e-6)
    rows = bench(model, tmp_path / "out", "--host", host, "--num-prompts", "1")
    assert [row["figures"] for row in rows if row["table"] == "server scenario"] == ["measured", "estimate"]
    assert {row["queries_s"] for row in rows if row["table"] == "server scenario"} == {0}
    assert "rates" not in {row["table"] for row in rows}


def test_mistakes_are_one_line(model: str, host: str, capsys: pytest.CaptureFixture[str]) -> None:
    mistakes = {
        ("--mlperf-task", "gptj"): "--mlperf-task gptj is not a known task: use one of llama3.1-8b, ",
        ("--host", "nowhere"): "--host nowhere: unknown host",
        ("--host", host, "--input-len", "9000"): f"tokens exceed the model's context of {CONTEXT}",
    }
    for arguments, message in mistakes.items():
        with pytest.raises(SystemExit) as caught:
            main(["bench", "host", model, *SMALL, *arguments])
        (line,) = capsys.readouterr().err.splitlines()
        assert caught.value.code == 2
        assert message in line
