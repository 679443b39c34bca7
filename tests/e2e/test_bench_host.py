"""`numaserve bench host` with the demo model, and a host that is described."""

import json
from pathlib import Path
from typing import Any

import pytest
from numaserve.server.cli.main import main
from numaserve.workers.bench import published
from numaserve.workers.bench.published import Publication

from tests.support.demo import needs_demo

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
SIZES = {"architecture": "LlamaForCausalLM", "hidden-size": 576, "layers": 30, "vocab-size": 49152}
FIGURES = {"host": "8592+", "weights": "int8", "ttft-ms": 12.5, "tpot-ms": 3.5}
PUBLICATION = {
    "source": "nowhere",
    "server": "Another",
    "input-len": 1024,
    "output-len": 128,
    "models": [{"name": "SmolLM2", "sizes": SIZES, "figures": [FIGURES]}],
}
SMALL = ("--tp", "1", "--threads-per-worker", "1", "--kv-cache-gib", "0.05", "--input-len", "24", "--output-len", "4")


@pytest.fixture
def host(tmp_path: Path) -> str:
    path = tmp_path / "host.yaml"
    path.write_text(HOST)
    return str(path)


def bench(file: Path, *arguments: str) -> list[dict[str, Any]]:
    """The JSON lines of a run that ends with status 0."""
    with pytest.raises(SystemExit) as caught:
        main(["bench", "host", "demo", *SMALL, *arguments, "--json", str(file)])
    assert caught.value.code == 0
    return [json.loads(line) for line in file.read_text().splitlines()]


@needs_demo
def test_a_measurement_is_next_to_the_estimate_and_to_published_figures(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(published, "publications", lambda: [Publication.model_validate(PUBLICATION)])
    rows = bench(tmp_path / "out", "--host", host, "--num-prompts", "2")
    measured, estimate, bound, other = rows
    assert [row["figures"] for row in rows] == ["measured", "estimate", "lower bound", "published"]
    assert {row["model"] for row in rows[:3]} == {"SmolLM2-135M-Instruct"}
    assert {(row["server"], row["host"], row["input_len"], row["output_len"]) for row in rows[:3]} == {
        ("numaserve", "one node", 24, 4)
    }
    assert estimate["ttft_ms"] > bound["ttft_ms"] > 0 and estimate["tpot_ms"] > bound["tpot_ms"] > 0
    assert measured["of_planned_ttft"] == pytest.approx(measured["ttft_ms"] / estimate["ttft_ms"])
    assert measured["of_planned_tpot"] == pytest.approx(measured["tpot_ms"] / estimate["tpot_ms"])
    assert measured["ttft_ms"] > 0 and measured["tpot_ms"] > 0
    assert (other["server"], other["model"], other["host"], other["weights"]) == (
        *("Another", "SmolLM2", "Xeon 8592+, DDR5-5600", "int8"),
    )
    assert (other["input_len"], other["output_len"], other["ttft_ms"], other["tpot_ms"]) == (1024, 128, 12.5, 3.5)
    out = capsys.readouterr().out
    assert "one request at a time" in out and "published" in out
