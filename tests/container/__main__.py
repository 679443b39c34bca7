"""``python -m tests.container``: runs the image under two seccomp profiles and tells what was found.

Needs podman, root and the image. The OCI runtime may be named: crun cannot be used where cgroups are of both versions.
"""

import argparse
import errno
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from openai import OpenAI

from tests.support.demo import demo_model

MOST_BYTES = 600 << 20
NUMA_CALLS = {"mbind", "set_mempolicy", "get_mempolicy", "migrate_pages", "move_pages"}
PODMAN = shutil.which("podman") or "podman"
PODMAN_PROFILE = Path("/usr/share/containers/seccomp.json")
PROMPT = "The capital of France is"


def main() -> int:
    """Check the image; the first thing that is not as it should be raises."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", default="localhost/numaserve")
    parser.add_argument("--runtime", default="runc")
    arguments = parser.parse_args()
    size = int(podman("image", "inspect", "--format", "{{.Size}}", arguments.image))
    assert size <= MOST_BYTES, f"the image has {size} bytes"
    print(f"image: {size / 2**20:.0f} MiB", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile.json"
        profile.write_text(without_numa(PODMAN_PROFILE.read_text()))
        found = [served(arguments, each) for each in (PODMAN_PROFILE, profile)]
    (bound, told, text), (refused, told_refused, same) = found
    assert (bound, told) == (1.0, 0), "podman's own profile allows to bind memory"
    assert (refused, told_refused) == (0.0, 1), "the refusal is not told once"
    assert text == same, "other bits without bound memory"
    print(f"podman's profile: memory bound; without NUMA calls: not bound, told once, and the same answer {text!r}")
    return 0


def served(arguments: argparse.Namespace, profile: Path) -> tuple[float, int, str]:
    """Serve the demo model under a profile. Returns the metric of rank 0, how often the log tells, and an answer."""
    with tempfile.TemporaryDirectory() as folder, running(arguments, profile, log := Path(folder) / "log") as found:
        url, name, process = found
        status = podman("exec", name, "cat", "/proc/self/status")
        fields = dict(line.split(":\t") for line in status.splitlines())
        assert (fields["CapEff"], fields["NoNewPrivs"], fields["Seccomp"]) == ("0" * 16, "1", "2")
        assert fields["Uid"].split() == ["10001"] * 4
        for place in ("/x", "/opt/numaserve/x"):
            touched = subprocess.run((PODMAN, "exec", name, "touch", place), check=False, capture_output=True)
            assert touched.returncode != 0, f"{place} can be written"
        with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            model = client.models.list().data[0].id
            answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0)
            stream = client.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0, stream=True)
            streamed = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
        text = answer.choices[0].text
        assert text == streamed and "Paris" in text
        metrics = httpx.get(f"{url}/metrics").text.splitlines()
        bound = [float(line.split()[1]) for line in metrics if line.startswith("numaserve_worker_memory_bound{")]
        podman("kill", "--signal", "TERM", name)
        assert process.wait(60) == 0, "a drained server exits with 0"
        told = log.read_text().count("memory is not bound to NUMA nodes")
    return bound[0], told, text


@contextmanager
def running(
    arguments: argparse.Namespace, profile: Path, log: Path
) -> Iterator[tuple[str, str, subprocess.Popen[bytes]]]:
    """A container that serves: its URL, its name, and podman's process that ends with it. It is gone afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    model = demo_model()
    name = f"numaserve-test-{port}"
    command: Sequence[str] = (
        *(PODMAN, "--runtime", arguments.runtime, "run", "--rm", "--name", name, "--network=host", "--read-only"),
        *("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=1000:1000"),  # podman's own may be more than is allowed
        *("--tmpfs", "/tmp", "--cap-drop=all", "--security-opt=no-new-privileges"),
        *("--security-opt", f"seccomp={profile}", "--volume", f"{model.parent}:/models:ro", arguments.image),
        *("serve", f"/models/{model.name}", "--port", str(port), "--kv-cache-gib", "0.1", "--weights-cache-gib", "0"),
    )
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as written:
        process = subprocess.Popen(command, stdout=written, stderr=written)
    try:
        while not is_ready(url):
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)
        yield url, name, process
    finally:
        process.terminate()
        process.wait(60)


def is_ready(url: str) -> bool:
    """GET /readyz."""
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def without_numa(profile: str) -> str:
    """A seccomp profile without the calls that Docker's refuses to whom has no CAP_SYS_NICE."""
    made = json.loads(profile)
    for rule in made["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in NUMA_CALLS]
    made["syscalls"].append({"names": sorted(NUMA_CALLS), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM})
    return json.dumps(made)


def podman(*words: str) -> str:
    """What podman answers. Raises `CalledProcessError`."""
    return subprocess.run((PODMAN, *words), check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
