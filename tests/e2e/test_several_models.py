"""Two models of one gateway, with their workers: each model answers as it does alone."""

import json
import os
from pathlib import Path

import httpx
import pytest

from tests.support.demo import needs_demo
from tests.support.real_server import RealServer, completion

pytestmark = [needs_demo, pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")]

PROMPT = "The capital of France is"


def test_a_model_answers_behind_a_gateway_as_it_does_alone(tmp_path: Path) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    common = {"model": "demo", "kv_cache_gib": 0.1, "memory": "2GiB", "weights_cache_gib": 0}
    file = tmp_path / "models.yaml"
    file.write_text(
        json.dumps(
            {
                "models": {
                    "chat": {**common, "cores": first},
                    "embedding": {**common, "cores": second, "task": "embed", "load": "request"},
                }
            }
        )
    )
    with RealServer("--kv-cache-gib", "0.1", "--tp", "1") as alone:
        expected = alone.complete(PROMPT, 16, logprobs=1, seed=1).json()["choices"]
    with RealServer(several=file) as several:
        answer = several.complete(PROMPT, 16, logprobs=1, seed=1)
        assert answer.json()["choices"] == expected
        with httpx.Client(base_url=several.url, timeout=60) as client:
            body = {"model": "embedding", "input": PROMPT}
            assert len(client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]) == 576
            both = [client.post("/v1/completions", json=completion(PROMPT, 4, model=name)) for name in ("chat", "x")]
            assert [each.status_code for each in both] == [200, 404]
            metrics = client.get("/metrics").text
            for name in ("chat", "embedding"):
                assert f'numaserve_worker_up{{model_name="{name}",rank="0"}} 1.0' in metrics
        assert several.terminate() == 0
        assert several.orphans() == []
