"""Two models of one gateway, with their workers: each model answers as it does alone, and about images too."""

import json
import os
from pathlib import Path

import httpx
import pytest
from numaserve.server.gateway.gateway import INLINE_BYTES
from numaserve.server.http.limits import ApiLimits
from PIL import Image

from tests.support import checkpoints, vision
from tests.support.chat_model import HIDDEN, write_model
from tests.support.image_files import image_part, in_file
from tests.support.real_server import RealServer, completion

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")

PROMPT = "The capital of France is"


def test_a_model_answers_behind_a_gateway_as_it_does_alone(tmp_path: Path) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    model = str(write_model(tmp_path))
    common = {"model": model, "kv_cache_gib": 0.1, "memory": "2GiB", "weights_cache_gib": 0}
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
    with RealServer("--kv-cache-gib", "0.1", "--tp", "1", model=model) as alone:
        expected = alone.complete(PROMPT, 16, logprobs=1, seed=1).json()["choices"]
    with RealServer(several=file) as several:
        answer = several.complete(PROMPT, 16, logprobs=1, seed=1)
        assert answer.json()["choices"] == expected
        with httpx.Client(base_url=several.url, timeout=60) as client:
            body = {"model": "embedding", "input": PROMPT}
            assert len(client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]) == HIDDEN
            both = [client.post("/v1/completions", json=completion(PROMPT, 4, model=name)) for name in ("chat", "x")]
            assert [each.status_code for each in both] == [200, 404]
            metrics = client.get("/metrics").text
            for name in ("chat", "embedding"):
                assert f'numaserve_worker_up{{model_name="{name}",rank="0"}} 1.0' in metrics
        assert several.terminate() == 0
        assert several.orphans() == []


def test_a_model_sees_behind_a_gateway_as_it_does_alone(tmp_path: Path) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    model = str(vision.save_served(checkpoints.build(vision.CASES["smolvlm"]()), tmp_path))
    common = {"kv_cache_gib": 0.1, "memory": "2GiB", "weights_cache_gib": 0}
    images = {"max_images": 4, "image_memory_gib": 0.05, "context_length": 256}
    models = {
        "eyes": {"model": model, "cores": first, **common, **images},
        "text": {"model": str(write_model(tmp_path)), "cores": second, **common},
    }
    file = tmp_path / "models.yaml"
    file.write_text(json.dumps({"models": models}))
    # Larger than what the gateway decodes itself.
    noise = image_part(in_file(Image.effect_noise((1200, 1200), 100).convert("RGB")), detail="low")
    assert len(json.dumps(noise)) > INLINE_BYTES
    body = {"messages": [{"role": "user", "content": [noise]}], "max_tokens": 8, "ignore_eos": True}
    body |= {"temperature": 0, "logprobs": True, "top_logprobs": 3}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in images.items()]
    with RealServer("--kv-cache-gib", "0.1", "--tp", "1", *options, model=model) as alone:
        expected = httpx.post(f"{alone.url}/v1/chat/completions", json=body, timeout=60).json()["choices"]
    with RealServer(several=file) as several, httpx.Client(base_url=several.url, timeout=60) as client:

        def ask(name: str, **more: object) -> httpx.Response:
            return client.post("/v1/chat/completions", json=body | {"model": name} | more)

        assert ask("eyes").json()["choices"] == expected
        assert ask("text").status_code == 413  # a limit of its own: it reads no images
        small = [{"role": "user", "content": [image_part(in_file(Image.new("RGB", (9, 9))))]}]
        refused = ask("text", messages=small)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")
        assert ask("eyes", user="x" * ApiLimits.max_body_bytes).status_code == 413
        assert ask("eyes").json()["choices"] == expected
        listed = {each["id"]: each for each in client.get("/v1/models").json()["data"]}
        assert listed["eyes"]["input_modalities"] == ["text", "image"]
        assert listed["eyes"]["image_limits"]["max_images"] == 4
        assert (listed["text"]["input_modalities"], listed["text"]["image_limits"]) == (["text"], None)
