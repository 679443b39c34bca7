"""``python -m tests.fuzz --seconds S [TARGET ...]``: each target for its part of the time, one after the other."""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.native import PLANS, plans_command
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).with_name("corpus")
FOUND = ROOT / "build" / "fuzz"
_LONGEST = 16384  # bytes of an input


def main() -> int:
    """Print executions and what was found. Returns the exit status: 1 when something was."""
    known = [*TARGETS, PLANS]
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=60, help="of all targets together")
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(known)}; all unless named")
    arguments = parser.parse_args()
    names = arguments.targets or known
    if not set(names) <= set(known):
        parser.error(f"targets are {', '.join(known)}")
    seconds = max(1, arguments.seconds // len(names))
    failed = [name for name in names if not _run(name, seconds)]
    if failed:
        print(f"findings in {', '.join(failed)}: mend them, and keep their inputs in tests/fuzz/corpus/")
    return 1 if failed else 0


def _run(name: str, seconds: int) -> bool:
    found = FOUND / name
    (found / "crashes").mkdir(parents=True, exist_ok=True)
    (found / "corpus").mkdir(exist_ok=True)
    command = plans_command(seconds, found) if name == PLANS else _atheris(name, seconds, found)
    # In memory, and removed here: atheris ends its process without a word to Python.
    with tempfile.TemporaryDirectory(prefix="numaserve-fuzz-", dir="/dev/shm") as files:
        environment = os.environ | {"TMPDIR": files}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace", check=False
        )
    (found / "log").write_text(done.stdout + done.stderr)
    rate = re.findall(r"(\d+) (?:runs|exec)[^\n]*?(\d+)", _figures(done.stderr + done.stdout))
    executions, a_second = rate[-1] if rate else ("?", "?")
    outcome = "nothing found" if done.returncode == 0 else f"FOUND, see {found.relative_to(ROOT)}"
    print(f"{name}: {executions} executions, {a_second} a second, {outcome}", flush=True)
    return done.returncode == 0


def _figures(log: str) -> str:
    """libFuzzer's last figures, as one line."""
    figures = dict(re.findall(r"stat::(\w+):\s+(\d+)", log))
    if not figures:
        return log
    return f"{figures['number_of_executed_units']} exec {figures['average_exec_per_sec']}"


def _atheris(name: str, seconds: int, found: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "tests.fuzz.one", name, str(found / "corpus"), str(CORPUS / name)),
        *(f"-max_total_time={seconds}", f"-artifact_prefix={found / 'crashes'}/", f"-max_len={_LONGEST}"),
        *("-timeout=20", "-rss_limit_mb=4096", "-print_final_stats=1"),
    ]


if __name__ == "__main__":
    sys.exit(main())
