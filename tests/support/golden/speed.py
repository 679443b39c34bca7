"""`python -m tests.support.golden.speed BEFORE AFTER`: whether one tree is slower than another.

A side is a folder that holds the package `numaserve`. It is asked by its own commands, `numaserve bench offline` and
`numaserve bench load`, in processes of their own that have the folder first in their path: nothing of its insides is
known here. The sides take turns, each pair in the other order than the one before, and what is told is the median of
the pairs' ratios with an interval that has it with a probability of 95 % or more, whatever the distribution. It wants a
machine with nothing else to do: where others take the cores, the intervals are wider than what is looked for.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from numaserve.workers.bench.shapes import random_checkpoint

_NUMASERVE = "import sys; from numaserve.server.cli.main import main; sys.exit(main())"
_STEPS = ("--tp", "1", "--input-len", "512", "--prefills", "5", "--no-operations")
_OUTPUT_LEN = {"smollm2": "257", "llama-1b": "49"}  # a step of the one is as long as several of the other
_LIMITS = {"prefill": 0.01, "decode": 0.01, "load": 0.05}  # of the median, by the first word of a figure's name
_LEAST_PAIRS = 9
Figures = dict[str, float]  # seconds or milliseconds, by what takes them


def measure(side: Path, name: str, model: str, only: str) -> Figures:
    """Of one side: steps, loading, or both."""
    found: Figures = {}
    if only != "load":
        for row in _bench(side, "offline", model, *_STEPS, "--output-len", _OUTPUT_LEN[name]):
            if row["table"] == "steps":
                found |= {f"{row['phase']}, {each} of a run": row[f"{each}_ms"] for each in ("median", "best")}
    if only != "steps":
        for row in _bench(side, "load", model, "--tp", "1"):
            found |= {f"load, {row['start']} start, {each} of a run": row[f"{each}_s"] for each in ("median", "best")}
    return found


def _bench(side: Path, *arguments: str) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory(prefix="numaserve-speed-") as folder:
        file = Path(folder) / "rows.jsonl"
        command = [sys.executable, "-c", _NUMASERVE, "bench", *arguments, "--json", str(file)]
        # Not from the repository's root, whose folders have the packages' names.
        subprocess.run(
            command, env=os.environ | {"PYTHONPATH": str(side)}, cwd=folder, check=True, stdout=subprocess.DEVNULL
        )
        return [json.loads(line) for line in file.read_text().splitlines()]


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Order statistics between which the median lies with a probability of 95 % or more."""
    ordered, count = sorted(ratios), len(ratios)
    below = 0
    while 2 * sum(math.comb(count, k) for k in range(below + 2)) <= 0.05 * 2**count:
        below += 1
    return ordered[below], ordered[-1 - below]


def compare(before: Path, after: Path, name: str, model: str, pairs: int, only: str) -> bool:
    """Print a model's figures; whether all medians are within their limits."""
    runs: list[tuple[Figures, Figures]] = []
    for pair in range(pairs):
        sides = (before, after) if pair % 2 == 0 else (after, before)
        found = {side: measure(side, name, model, only) for side in sides}
        runs.append((found[before], found[after]))
        said = ", ".join(f"{figure} {found[after][figure] / each - 1:+.1%}" for figure, each in found[before].items())
        print(f"{name}: pair {pair + 1} of {pairs}, load {os.getloadavg()[0]:.1f}: {said}", file=sys.stderr, flush=True)
    within = True
    for figure in runs[0][0]:
        ratios = [new[figure] / old[figure] for old, new in runs]
        low, high = interval(ratios)
        limit = _LIMITS[figure.partition(",")[0]]
        is_within = median(ratios) <= 1 + limit
        within &= is_within
        verdict = "within" if is_within else "ABOVE"
        change, between = median(ratios) - 1, f"{low - 1:+.2%} to {high - 1:+.2%}"
        print(f"{name}: {figure}: {change:+.2%} ({between}), {verdict} {limit:.0%}", flush=True)
    return within


@contextmanager
def _models(names: Sequence[str]) -> Iterator[dict[str, str]]:
    """What each is called on the command line."""
    if "llama-1b" not in names:
        yield {"smollm2": "demo"}
        return
    with random_checkpoint("llama-1b") as folder:
        yield {name: "demo" if name == "smollm2" else str(folder) for name in names}


def main() -> int:
    """Returns 1 where a median is above its limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.golden.speed", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--pairs", type=int, default=_LEAST_PAIRS, help=f"at least {_LEAST_PAIRS}")
    parser.add_argument("--model", choices=list(_OUTPUT_LEN), action="append", help="default: both")
    parser.add_argument("--only", choices=["steps", "load"], default="")
    arguments = parser.parse_args()
    if arguments.pairs < _LEAST_PAIRS:
        parser.error(f"--pairs: at least {_LEAST_PAIRS}")
    before, after = (each.resolve() for each in (arguments.before, arguments.after))
    with _models(arguments.model or list(_OUTPUT_LEN)) as models:
        within = [compare(before, after, *each, arguments.pairs, arguments.only) for each in models.items()]
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
