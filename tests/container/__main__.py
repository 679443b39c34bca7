"""``python -m tests.container [NAME ...]``: runs the image and tells what was found.

The image is looked at under two seccomp profiles, by the probes of deploy/kubernetes, and by the clients of
tests.clients that are named, or all of them. Needs podman, root and the image. The OCI runtime may be named: crun
cannot be used where cgroups are of both versions.
"""

import argparse
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.clients.servers import OPTIONS
from tests.container.confinement import check_confinement
from tests.container.image import Image
from tests.container.probes import check_probes
from tests.support.demo import demo_model

MOST_BYTES = 600 << 20


def main() -> int:
    """Check the image; the first thing that is not as it should be raises, but for clients, which are all run."""
    parser = argparse.ArgumentParser(prog="python -m tests.container", description=__doc__)
    parser.add_argument("clients", nargs="*", metavar="NAME", help="of clients")
    parser.add_argument("--without-clients", action="store_true")
    parser.add_argument("--image", default="localhost/numaserve")
    parser.add_argument("--runtime", default="runc")
    arguments = parser.parse_args()
    image = Image(arguments.image, arguments.runtime)
    assert image.size() <= MOST_BYTES, f"the image has {image.size()} bytes"
    print(f"image: {image.size() / 2**20:.0f} MiB", flush=True)
    check_confinement(image)
    check_probes(image)
    return 0 if arguments.without_clients else run_clients(image, arguments.clients)


def run_clients(image: Image, names: list[str]) -> int:
    """Run clients before two containers; the status of `python -m tests.clients`."""
    model = demo_model()
    serve = (f"/models/{model.name}", *OPTIONS, "--weights-cache-gib", "0")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        containers = [
            stack.enter_context(
                image.running("--volume", f"{model.parent}:/models:ro", serve=serve, log=folder / f"log-{number}")
            )
            for number in range(2)
        ]
        for container in containers:
            container.until_ready()
        urls = [container.url for container in containers]
        return subprocess.run((sys.executable, "-m", "tests.clients", "--urls", *urls, *names), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
