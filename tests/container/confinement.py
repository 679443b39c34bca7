"""What a container may do, and what becomes of its memory under two seccomp profiles."""

import errno
import json
import tempfile
from pathlib import Path

import httpx
from openai import OpenAI

from tests.container.image import PODMAN_PROFILE, Container, Image, podman
from tests.support.demo import demo_model

NUMA_CALLS = {"mbind", "set_mempolicy", "get_mempolicy", "migrate_pages", "move_pages"}
PROMPT = "The capital of France is"


def check_confinement(image: Image) -> None:
    """Podman's profile lets memory be bound, Docker's does not: the same answers, and the refusal is told."""
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile.json"
        profile.write_text(_without_numa(PODMAN_PROFILE.read_text()))
        found = [_served(image, each) for each in (PODMAN_PROFILE, profile)]
    (bound, told, text), (refused, told_refused, same) = found
    assert (bound, told) == (1.0, 0), "podman's own profile allows to bind memory"
    assert (refused, told_refused) == (0.0, 1), "the refusal is not told once"
    assert text == same, "other bits without bound memory"
    print(f"podman's profile: memory bound; without NUMA calls: not bound, told once, and the same answer {text!r}")


def _served(image: Image, profile: Path) -> tuple[float, int, str]:
    """Serve the demo model under a profile. Returns the metric of rank 0, how often the log tells, and an answer."""
    model = demo_model()
    options = ("--volume", f"{model.parent}:/models:ro")
    serve = (f"/models/{model.name}", "--kv-cache-gib", "0.1", "--weights-cache-gib", "0")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with image.running(*options, serve=serve, log=log, profile=profile) as container:
            container.until_ready()
            _check_rights(container)
            text = _answer(container.url)
            metrics = httpx.get(f"{container.url}/metrics").text.splitlines()
            bound = [float(line.split()[1]) for line in metrics if line.startswith("numaserve_worker_memory_bound{")]
            container.terminate()
            assert container.process.wait(60) == 0, "a drained server exits with 0"
        return bound[0], log.read_text().count("memory is not bound to NUMA nodes"), text


def _check_rights(container: Container) -> None:
    status = podman("exec", container.name, "cat", "/proc/self/status")
    fields = dict(line.split(":\t") for line in status.splitlines())
    assert (fields["CapEff"], fields["NoNewPrivs"], fields["Seccomp"]) == ("0" * 16, "1", "2")
    assert fields["Uid"].split() == ["10001"] * 4
    for place in ("/x", "/opt/numaserve/x"):
        assert not container.can_write(place), f"{place} can be written"


def _answer(url: str) -> str:
    with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        model = client.models.list().data[0].id
        answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0)
        stream = client.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0, stream=True)
        streamed = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
    text = answer.choices[0].text
    assert text == streamed and "Paris" in text
    return text


def _without_numa(profile: str) -> str:
    """A seccomp profile without the calls that Docker's refuses to whom has no CAP_SYS_NICE."""
    made = json.loads(profile)
    for rule in made["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in NUMA_CALLS]
    made["syscalls"].append({"names": sorted(NUMA_CALLS), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM})
    return json.dumps(made)
