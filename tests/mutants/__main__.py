"""`python -m tests.mutants draw | renew | run`: run the tests on small random defects of the product.

`draw` writes a list of mutants, drawn by a seed. `renew` mends the entries of lines that have moved or changed since.
`run` puts each mutant into a checkout and runs the tests until one fails: first the folders that mirror the mutant's
folder, then all others. `run --check` stops after the tests that `make check` runs for the mutant's file.
"""

import argparse
import json
import random
import signal
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from tests.mutants.run import Suite, Tree, run
from tests.mutants.sites import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
DRAWN = Path(__file__).with_name("drawn.jsonl")
SEED = 416177
# By the lines of each folder, with two at least.
SHARES = {"server": 11, "workers": 6, "kernels": 5, "shm_comm": 2}
SUFFIXES = {".py", ".cc", ".h", ".inl"}


def draw(seed: int) -> list[Mutant]:
    """Draw the number of mutants in `SHARES` from each folder, each in another file."""
    rng = random.Random(seed)
    drawn: list[Mutant] = []
    for folder, share in SHARES.items():
        paths = sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES)
        candidates = [mutant for path in paths for mutant in mutants_of(path, ROOT)]
        rng.shuffle(candidates)
        of_files = {mutant.file: mutant for mutant in reversed(candidates)}  # the first of each file
        drawn += sorted(of_files.values(), key=candidates.index)[:share]
    return drawn


def read() -> list[Mutant]:
    """Return the list that `draw` has written."""
    return [Mutant(**json.loads(line)) for line in DRAWN.read_text().splitlines()]


def renewed(mutant: Mutant, seed: int) -> Mutant:
    """Return the mutant at the place of its line, or another one of its file where that line is no more."""
    path = ROOT / mutant.file
    lines = path.read_text().splitlines()
    if places := [number for number, line in enumerate(lines, 1) if line == mutant.was]:
        return replace(mutant, line=min(places, key=lambda number: abs(number - mutant.line)))
    return random.Random(seed).choice(list(mutants_of(path, ROOT)))


def renew(seed: int) -> None:
    """Write the list with every stale entry renewed, and print these entries."""
    before = read()
    after = [renewed(mutant, seed) for mutant in before]
    for old, new in zip(before, after, strict=True):
        if new != old:
            print(f"{old.file}:{old.line}: {f'now line {new.line}' if new.was == old.was else f'drawn again: {new}'}")
    write(after)


def write(mutants: Iterable[Mutant]) -> None:
    """Write the list."""
    DRAWN.write_text("".join(json.dumps(asdict(mutant)) + "\n" for mutant in mutants))


def main() -> int:
    """Draw or run; the exit status of a run is 1 where a mutant survived in any suite."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("draw", "write a new list"), ("renew", "mend entries whose lines have moved or changed")):
        commands.add_parser(name, help=what).add_argument("--seed", type=int, default=SEED)
    running = commands.add_parser("run", help="run tests on each mutant of the list")
    running.add_argument("--tree", type=Path, required=True, help="a checkout after `make test`, which is edited")
    running.add_argument("--suite", action="append", required=True, metavar="NAME=CHECKOUT", help="whose tests are run")
    running.add_argument("--check", action="store_true", help="run only the tests that `make check` runs for the file")
    running.add_argument("--out", type=Path, required=True, help="JSON lines, one for each mutant and suite")
    running.add_argument("--only", type=int, nargs="*", help="numbers of mutants, from 0; default: all")
    running.add_argument("--minutes", type=float, default=6.0, help="for one mutant and suite")
    given = parser.parse_args()
    if given.command == "draw":
        write(draw(given.seed))
        return 0
    if given.command == "renew":
        renew(given.seed)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C does: the product is put back
    named = [each.partition("=") for each in given.suite]
    suites = [Suite(name, Path(path).resolve(), given.check) for name, _, path in named]
    chosen = [(n, mutant) for n, mutant in enumerate(read()) if given.only is None or n in given.only]
    return run(Tree(given.tree.resolve()), suites, chosen, given.out, given.minutes)


if __name__ == "__main__":
    sys.exit(main())
