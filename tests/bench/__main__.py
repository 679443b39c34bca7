"""``python -m tests.bench [NAME ...]``: runs the benchmarks, or those named (kernels, ring, step, serving), in turn."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py") if path.stem != "bench_common")


def main() -> int:
    """Run each in a process of its own; the worst exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=", ".join(NAMES))
    names = parser.parse_args().names or NAMES
    return max(subprocess.run([sys.executable, FOLDER / f"bench_{name}.py"], check=False).returncode for name in names)


if __name__ == "__main__":
    sys.exit(main())
