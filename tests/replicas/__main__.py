"""``python -m tests.replicas``: the application of deploy/ray on a cluster of this machine's processes.

Ray is in an environment of its own, with deploy/ray and the front end where an installation has them; the servers are
those of this interpreter. The exit status is 1 where a check failed.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.clients.environments import python_with

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / "build" / "replicas" / "ray"
PACKAGES = {"ray[serve]": "2.60.0", "psutil": "7.2.2"}
RUN_SECONDS = 900.0


def main() -> int:
    """Run all checks, or those that are named; `stages` is the one of a model over two hosts."""
    python = python_with(PACKAGES, ENVIRONMENT)
    folder = Path(tempfile.mkdtemp(prefix="ns-ray-"))  # short: socket paths have a limit
    (folder / "import" / "numaserve").mkdir(parents=True)
    for name, place in {"ray": ROOT / "deploy" / "ray", "server": ROOT / "server"}.items():
        (folder / "import" / "numaserve" / name).symlink_to(place)
    try:
        scripts = [] if sys.argv[1:] == ["stages"] else ["ray_cluster.py"]
        scripts += ["ray_stages.py"] if sys.argv[1:] in ([], ["stages"]) else []
        return max([_run(python, script, folder) for script in scripts])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(python: Path, script: str, folder: Path) -> int:
    """Run a script in Ray's environment; its exit status."""
    process = subprocess.Popen(
        [str(python), str(Path(__file__).with_name(script)), str(folder), sys.executable, *sys.argv[1:]],
        env=_environment(folder),
        start_new_session=True,
    )
    try:
        return process.wait(RUN_SECONDS)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "VIRTUAL_ENV"))}
    told = {
        "PYTHONPATH": str(folder / "import"),
        "SERVER_PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "RAY_USAGE_STATS_ENABLED": "0",
        # How often replicas and handles tell of their load: the default is ten seconds.
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
        "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    }
    return kept | told


if __name__ == "__main__":
    sys.exit(main())
