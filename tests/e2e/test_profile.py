"""What the real workers tell of their steps."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import encoders
from tests.support.demo import needs_demo
from tests.support.forked import forked_or_executed
from tests.support.real_server import RealServer
from tests.support.sentence_folder import write_splade
from tests.support.tokenizer_builders import wordpiece_backend

pytestmark = needs_demo

PROMPT, OUTPUT = 100, 80
EMBEDDING_BYTES = 49152 * 576 * 2  # which is looked up only: the head is another matrix, of 8 bits


def profile(server: RealServer) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "numaserve.server.cli.main", "profile", server.url, "--json"]
    options = ["--prompt-tokens", str(PROMPT), "--output-tokens", str(OUTPUT)]
    process = forked_or_executed([*command, *options], stdout=subprocess.PIPE)
    printed, _ = process.communicate()
    assert process.returncode == 0
    return list(json.loads(printed))


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    with RealServer("--tp", "2", "--kv-cache-gib", "0.25") as server:
        yield server


@pytest.fixture(scope="module")
def phases(server: RealServer) -> list[dict[str, Any]]:
    """What a profile tells, which changes no token."""
    before = server.complete("The capital of France is", 8).json()["choices"][0]["text"]
    phases = profile(server)
    assert server.complete("The capital of France is", 8).json()["choices"][0]["text"] == before
    return phases


def test_a_profile_accounts_for_the_steps_and_the_weights(server: RealServer, phases: list[dict[str, Any]]) -> None:
    workers = server.info()["workers"]
    prefills, decodes = phases[:2], phases[2:]
    assert [phase["name"] for phase in phases] == ["prefill", "prefill", "decode", "decode"]
    for phase in prefills:
        assert (phase["steps"], phase["tokens"]) == (1, PROMPT)
    for phase, worker in zip(decodes, workers, strict=True):
        assert phase["rank"] == worker["rank"]
        assert 0 < phase["steps"] == phase["tokens"] < OUTPUT
        *operations, between, step = phase["costs"]
        costs = {cost["name"]: cost for cost in operations}
        weights = sum(cost["mbytes"] for name, cost in costs.items() if cost["mflops"] and name != "attention")
        assert weights == pytest.approx((worker["weight_bytes"] - EMBEDDING_BYTES / 2) / 1e6)
        assert sum(cost["ms"] for cost in [*operations, between]) == pytest.approx(step["ms"])
        assert between["ms"] > 0
        assert 0 < costs["add_all_reduce"]["wait_ms"] < costs["add_all_reduce"]["ms"]
        assert costs["gate_up"]["wait_ms"] == 0
        # The sum is read, and the residual stream read and written, once after the embedding and twice in 30 layers.
        assert costs["add_all_reduce"]["mbytes"] == pytest.approx(61 * 3 * 576 * 4 / 1e6)
        assert phase["ceilings"]["isa"] == worker["isa"]
        assert step["of_ceiling"] > 0


def test_attention_is_counted_by_what_each_token_sees(phases: list[dict[str, Any]]) -> None:
    seen, steps = PROMPT * (PROMPT + 1) / 2, phases[2]["steps"]
    # Of both ranks, which divide the heads.
    (flops, nbytes), (decode_flops, _) = (
        [sum(of_attention(phase)[what] for phase in ranks) for what in ("mflops", "mbytes")]
        for ranks in (phases[:2], phases[2:])
    )
    per_pair = 4 * 9 * 64 * 30 / 1e6  # two products of 9 heads of 64 in 30 layers
    assert flops == pytest.approx(per_pair * seen)
    assert nbytes == pytest.approx(2 * 2 * 4 * 64 * 30 * PROMPT / 1e6)  # both ranks have one of the three KV heads
    # The last steps of the output: each sees one token more.
    last = PROMPT + OUTPUT - 1
    assert decode_flops == pytest.approx(per_pair * (last - (steps - 1) / 2))


def of_attention(phase: dict[str, Any]) -> dict[str, float]:
    """A rank's costs of an operation."""
    (found,) = (cost for cost in phase["costs"] if cost["name"] == "attention")
    return dict(found)


def test_a_profile_of_an_encoder_is_of_one_text(tmp_path: Path) -> None:
    folder = encoders.save("bert", encoders.random_encoder("bert"), tmp_path)
    wordpiece_backend().save(str(folder / "tokenizer.json"))
    with RealServer("--tp", "2", "--kv-cache-gib", "0.02", model=str(folder)) as server:
        phases = profile(server)
    assert [(phase["name"], phase["steps"], phase["tokens"]) for phase in phases] == [("text", 1, PROMPT)] * 2
    assert {"layer_norm", "up", "pool"} <= {cost["name"] for cost in phases[0]["costs"]}


def test_a_profile_of_a_splade_model_is_of_one_text(tmp_path: Path) -> None:
    folder = encoders.save("bert", encoders.random_splade("bert"), tmp_path)
    wordpiece_backend().save(str(folder / "tokenizer.json"))
    write_splade(folder, "sentence_transformers.sparse_encoder.modules", pooling_strategy="max")
    with RealServer("--kv-cache-gib", "0.02", model=str(folder)) as server:
        (phase,) = profile(server)
    assert (phase["name"], phase["steps"], phase["tokens"]) == ("text", 1, PROMPT)


@pytest.mark.parametrize("labels", [1, 3])
def test_a_profile_of_a_classifier_is_of_one_text(tmp_path: Path, labels: int) -> None:
    folder = encoders.save("bert", encoders.random_classifier("bert", labels), tmp_path)
    wordpiece_backend().save(str(folder / "tokenizer.json"))
    with RealServer("--kv-cache-gib", "0.02", model=str(folder)) as server:
        (phase,) = profile(server)
    assert (phase["name"], phase["steps"]) == ("text", 1)
    assert 0 < phase["tokens"] <= encoders.CONTEXT
