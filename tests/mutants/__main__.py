"""`python -m tests.mutants draw | run`: run the tests on small random defects of the product.

`mutants.jsonl` is the table of the defects, of the test that kills each and of the seconds that this takes. `draw`
fills the table up, and replaces rows whose lines have changed. `run` puts each mutant into a checkout and runs tests
until one fails: the killer in the table, then the folders that mirror the mutant's folder, then all others. It writes
the killer into the table.
"""

import argparse
import signal
import sys
from pathlib import Path

from tests.mutants import table
from tests.mutants.run import Tree, judged

ROOT = Path(__file__).parents[2]
SEED = 416177


def main() -> int:
    """Draw or run; the exit status of a run is 1 where a mutant without a note survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="replace stale rows, and draw new ones up to the number of each folder")
    drawing.add_argument("--seed", type=int, default=SEED)
    running = commands.add_parser("run", help="run tests on the mutants of the table")
    running.add_argument("--tree", type=Path, required=True, help="a checkout after `make test`, which is edited")
    running.add_argument("--tests", type=Path, help="a checkout with other tests (default: those of the tree)")
    running.add_argument("--sets", default="native", help="instruction sets to compile (default: the processor's)")
    running.add_argument("--processes", type=int, default=2, help="processes of compiler and tests (default: 2)")
    running.add_argument("--check", action="store_true", help="run only the tests that `make check` runs for the file")
    running.add_argument("--only", default="", help="only mutants of files with this text in their path")
    running.add_argument("--new", action="store_true", help="only mutants that no test has met")
    running.add_argument("--minutes", type=float, default=6.0, help="for the tests of one mutant (default: 6)")
    given = parser.parse_args()
    if given.command == "draw":
        table.write([*table.draw(ROOT, table.read(), given.seed)])
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C does: the product is put back
    root = given.tree.resolve()
    tree = Tree(root, (given.tests or root).resolve(), given.sets, given.processes, given.check)
    return _run(tree, given)


def _run(tree: Tree, given: argparse.Namespace) -> int:
    survived = 0
    for row in table.read():
        if given.only not in row.file or (given.new and row.seconds is not None):
            continue
        after = judged(tree, row, given.minutes)
        survived += not after.killer and not after.note
        print(f"{after.file}: {after.killer or 'survived'}, {after.seconds} s", file=sys.stderr, flush=True)
        table.write(after if (each.file, each.was) == (row.file, row.was) else each for each in table.read())
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
