"""`python -m tests.golden record --root DIR --models DIR --out FILE`, and `python -m tests.golden compare A B`."""

import argparse
import itertools
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.golden.all_works import WORKS, checkpoints_of
from tests.golden.cases import Served
from tests.golden.compare import differences
from tests.golden.recording import Recording, check_root, write

_SHOWN = 20


def main() -> int:
    """Record a tree, or compare two records."""
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    commands = parser.add_subparsers(required=True)
    record = commands.add_parser("record", help="Record what a tree answers")
    record.add_argument("--root", type=Path, required=True, help="Folder with the package `numaserve` of the tree")
    record.add_argument("--models", type=Path, help="Folder of checkpoints; missing ones are written")
    record.add_argument("--out", type=Path, required=True, help="File to write")
    record.add_argument("--only", nargs="*", default=[""], help="Only servers and commands with a name that begins so")
    record.set_defaults(run=_record)
    compare = commands.add_parser("compare", help="Print the first differences of two records")
    compare.add_argument("records", type=Path, nargs=2)
    compare.set_defaults(run=_compare)
    arguments = parser.parse_args()
    return int(arguments.run(arguments))


def _record(arguments: argparse.Namespace) -> int:
    works = [work for work in WORKS if work.name.startswith(tuple(arguments.only))]
    with tempfile.TemporaryDirectory() as folder:
        models = (arguments.models or Path(folder)).resolve()
        _write_missing(checkpoints_of(works), models)
        root = arguments.root.resolve()
        check_root(root)
        begin = time.monotonic()
        entries = Recording(root, models).run(works)
    write(entries, arguments.out)
    servers = sum(isinstance(work, Served) for work in works)
    commands, seconds = len(works) - servers, time.monotonic() - begin
    print(f"{len(entries)} cases of {servers} servers and {commands} commands in {seconds:.0f} s")
    return 0


def _write_missing(names: set[str], models: Path) -> None:
    missing = {name for name in names - {"demo"} if not (models / name).exists()}
    if missing:
        from tests.golden.checkpoint_folder import write_checkpoints  # imports torch, which takes seconds

        write_checkpoints(missing, models)


def _compare(arguments: argparse.Namespace) -> int:
    found = [*itertools.islice(differences(*arguments.records), _SHOWN + 1)]
    print(*found[:_SHOWN] or ["no difference"], sep="\n")
    if len(found) > _SHOWN:
        print("and more")
    return int(bool(found))


sys.exit(main())
