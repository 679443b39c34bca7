import signal
import subprocess
import sys
from pathlib import Path

import httpx
from served import announced_url, completion

from tests.support import tiny_model

SERVE_FAKE = Path(__file__).with_name("serve_fake.py")
# `numaserve serve`; when it ends, how many objects no collection looks at, and what it has imported.
SERVE = f"""
import atexit, gc, runpy, sys
from pathlib import Path
names = Path(sys.argv.pop(1))
atexit.register(lambda: names.write_text("\\n".join([str(gc.get_freeze_count()), *sys.modules])))
runpy.run_path({str(SERVE_FAKE)!r}, run_name="__main__")
"""
HEAVY = (
    *("torch", "transformers", "numaserve.kernels", "numaserve.workers.process"),
    *("opentelemetry.sdk", "opentelemetry.exporter", "numaserve.server.tracing"),
)
NOT_ASKED_FOR = (
    "numaserve.server.gateway",
    "aiohttp",
    "numaserve.server.kv_events",
    "numaserve.server.client.unix_session",
)


def test_the_front_end_serves_without_kernels_torch_and_transformers(model: Path, tmp_path: Path) -> None:
    names = tmp_path / "modules"
    tiny_model.give_response_template(model, {"start_anchor": "<", "fields": {"content": {}}})
    chat = {"messages": [{"role": "user", "content": "w11"}], "max_tokens": 5}
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-c", SERVE, str(names), str(model), "tp=1"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            url = announced_url(process)
            assert httpx.post(url + "/v1/completions", json=completion(5)).status_code == 200
            assert httpx.post(url + "/v1/completions", json=completion(5, stream=True, logprobs=2)).status_code == 200
            assert httpx.post(url + "/v1/chat/completions", json=chat).status_code == 200
            assert httpx.post(url + "/tokenize", json={"prompt": "a b"}).status_code == 200
            for route in ("/metrics", "/server_info?profile=1", "/v1/models", "/openapi.json"):
                assert httpx.get(url + route).status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.communicate()
    frozen, *imported = names.read_text().splitlines()
    assert int(frozen) > len(imported)
    assert "numaserve.server.engine.engine" in imported
    assert "numaserve.server.app.application" in imported
    assert "numaserve.server.answers.response_template.template" in imported
    left_out = tuple(f"{each}." for each in (*HEAVY, *NOT_ASKED_FOR))
    assert [name for name in imported if f"{name}.".startswith(left_out)] == []
