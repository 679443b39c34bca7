"""`python -m tests.pair BASE`: this tree against another commit, both loaded at once, in alternating steps.

Prints the ratios of the times of this tree to the times of BASE: prefill, decode, and the CPU time of the front end for
a token. A ratio below 1 means that this tree is faster. Each ratio is the median of its rounds, with the quartiles.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path

from numaserve.workers.bench.hybrid_shapes import ExpertSizes, HybridShape
from numaserve.workers.bench.shapes import random_checkpoint, write_checkpoint

from tests.pair.server import PairServer
from tests.support.alternating import quartiles, ratios_of_loads
from tests.support.tiny_model import write_words
from tests.support.trees import has_commit, installed_root, root_of_commit

_MODELS = ("demo", "llama-1b", "mixture")
# A hybrid with 64 experts, of 1.7 GB: no published mixture is loaded twice in the memory of a small machine.
_MIXTURE = HybridShape(1024, 8, 8, 2, 16, ExpertSizes(64, 4, 512), vocab=32000)
_PROMPT, _OUTPUT, _STREAMS = 1024, 48, 4
_WARM_UP = 2  # rounds that are not counted: the servers learn the times of their steps


@contextmanager
def model_path(name: str) -> Iterator[str]:
    """Yield what the serve command takes: the demo, or a folder of random weights, removed afterwards."""
    if name == "demo":
        yield name
        return
    with random_checkpoint(name) if name != "mixture" else _mixture() as folder:
        write_words(folder, json.loads((folder / "config.json").read_text())["vocab_size"])
        yield str(folder)


@contextmanager
def _mixture() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="np-") as folder:
        write_checkpoint(Path(folder), _MIXTURE)
        yield Path(folder)


def figures(server: PairServer) -> dict[str, float]:
    """Return the measurements of a round in seconds, by name."""
    one, _ = server.decode_s(1, _OUTPUT)
    many, cpu = server.decode_s(_STREAMS, _OUTPUT)
    return {
        f"prefill of {_PROMPT}": server.prefill_s(_PROMPT),
        "decode, 1 stream": one,
        f"decode, {_STREAMS} streams": many,
        "front end, CPU per token": cpu,
    }


def compare(roots: tuple[Path, Path], model: str, rounds: int, loads: int, tp: int) -> dict[str, list[list[float]]]:
    """Return the ratios of `rounds` in each of `loads`, by the name of the measurement."""
    this, base = (partial(PairServer, root, model, tp) for root in roots)
    return ratios_of_loads(this, base, loads, range(-_WARM_UP, rounds), figures)


def _row(name: str, found: Sequence[Sequence[float]]) -> str:
    low, middle, high = quartiles([*chain.from_iterable(found)])
    of_loads = " ".join(f"{statistics.median(of_load):.3f}" for of_load in found)
    return f"  {name:<26} {middle:6.3f}   ({low:.3f} to {high:.3f}; medians of the loads: {of_loads})"


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.pair", description=__doc__)
    parser.add_argument("base", help="commit to compare with")
    parser.add_argument(
        "--models", nargs="+", default=[*_MODELS], help=f"demo, mixture, or shapes (default: {' '.join(_MODELS)})"
    )
    parser.add_argument("--loads", type=int, default=3, help="times that both servers are started (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each kind in a load (default: 5)")
    parser.add_argument("--tp", type=int, default=1, help="ranks of each server (default: 1)")
    options = parser.parse_args()
    this = installed_root()
    if this is None or not has_commit(options.base):
        print("this tree must be installed (`make install`), and the commit must be in the checkout", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="np-") as folder:
        print(f"preparing the tree of {options.base}", flush=True)
        base = root_of_commit(options.base, this, Path(folder))
        for name in options.models:
            with model_path(name) as model:
                found = compare((this, base), model, options.rounds, options.loads, options.tp)
            print(f"{name}, this tree / {options.base}")
            print(*(_row(*each) for each in found.items()), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
