"""`python -m tests.golden against REV`, `record --root DIR --models DIR --out FILE`, and `compare A B`."""

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
from tests.support.trees import has_commit, installed_root, root_of_commit

_SHOWN = 20


def main() -> int:
    """Record a tree, or compare two records."""
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    commands = parser.add_subparsers(required=True)
    record = commands.add_parser("record", help="Record what a tree answers")
    record.add_argument("--root", type=Path, required=True, help="Folder with the package `numaserve` of the tree")
    record.add_argument("--out", type=Path, required=True, help="File to write")
    record.set_defaults(run=_record)
    against = commands.add_parser("against", help="Record a commit and the installed tree, and compare them")
    against.add_argument("commit", help="A commit whose native code may be another one: it is compiled then")
    against.set_defaults(run=_against)
    for each in (record, against):
        each.add_argument("--models", type=Path, help="Folder of checkpoints; missing ones are written")
        each.add_argument("--only", nargs="*", default=[""], help="Only servers and commands whose names begin so")
    compare = commands.add_parser("compare", help="Print the first differences of two records")
    compare.add_argument("records", type=Path, nargs=2)
    compare.set_defaults(run=_compare)
    arguments = parser.parse_args()
    return int(arguments.run(arguments))


def _record(arguments: argparse.Namespace) -> int:
    _record_tree(arguments, arguments.root.resolve(), arguments.out)
    return 0


def _record_tree(arguments: argparse.Namespace, root: Path, out: Path) -> None:
    works = [work for work in WORKS if work.name.startswith(tuple(arguments.only))]
    with tempfile.TemporaryDirectory() as folder:
        models = (arguments.models or Path(folder)).resolve()
        _write_missing(checkpoints_of(works), models)
        check_root(root)
        begin = time.monotonic()
        entries = Recording(root, models).run(works)
    write(entries, out)
    servers = sum(isinstance(work, Served) for work in works)
    commands, seconds = len(works) - servers, time.monotonic() - begin
    print(f"{len(entries)} cases of {servers} servers and {commands} commands in {seconds:.0f} s")


def _against(arguments: argparse.Namespace) -> int:
    installed = installed_root()
    if installed is None or not has_commit(arguments.commit):
        sys.exit(f"numaserve is not installed (make install), or the checkout has no commit {arguments.commit}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "commit").mkdir()
        arguments.models = arguments.models or folder / "models"
        roots = {"before": root_of_commit(arguments.commit, installed, folder / "commit"), "after": installed}
        for each, root in roots.items():
            _record_tree(arguments, root, folder / each)
        return _differences(*(folder / each for each in roots))


def _write_missing(names: set[str], models: Path) -> None:
    missing = {name for name in names - {"demo"} if not (models / name).exists()}
    if missing:
        from tests.golden.checkpoint_folder import write_checkpoints  # imports torch, which takes seconds

        write_checkpoints(missing, models)


def _compare(arguments: argparse.Namespace) -> int:
    return _differences(*arguments.records)


def _differences(first: Path, second: Path) -> int:
    found = [*itertools.islice(differences(first, second), _SHOWN + 1)]
    print(*found[:_SHOWN] or ["no difference"], sep="\n")
    if len(found) > _SHOWN:
        print("and more")
    return int(bool(found))


sys.exit(main())
