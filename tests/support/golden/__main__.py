"""`python -m tests.support.golden` record | check [--isa ISA] | dump CHECKPOINT | list.

`record` writes the record, `check` compares with it, on both instruction sets at once or on one; each in a process of
its own. `dump` prints all that the cases of a checkpoint come to, line by line, so that two trees can be compared with
diff where `check` finds a difference. `list` prints the cases.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.golden.adapter import Refused, isa, look
from tests.support.golden.cases import make_cases
from tests.support.golden.record import (
    ISAS,
    Record,
    differences,
    load_record,
    make_checkpoint,
    measure,
    merge,
    save_record,
)


def measured(names: tuple[str, ...] = ISAS) -> dict[str, Record]:
    """Records of all cases by instruction set, each made by a process of its own, all at once."""
    with tempfile.TemporaryDirectory(prefix="numaserve-golden-") as folder:
        files = {name: Path(folder) / name for name in names}
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.golden", "measure", str(file)],
                env=os.environ | {"NUMASERVE_ISA": name},
                cwd=Path(__file__).parents[3],
            )
            for name, file in files.items()
        ]
        statuses = [process.wait() for process in running]
        if any(statuses):
            raise SystemExit("the golden record could not be made: see above")
        return {name: json.loads(file.read_text()) for name, file in files.items()}


def _measure(file: Path) -> None:
    begin = time.perf_counter()
    file.write_text(json.dumps(measure(isa(), _say if os.environ.get("GOLDEN_VERBOSE") else lambda _: None)))
    print(f"{isa()}: {len(make_cases())} cases in {time.perf_counter() - begin:.0f} s", flush=True)


def _say(line: str) -> None:
    print(f"{time.perf_counter():.1f} {line}", flush=True)


def _check(names: tuple[str, ...]) -> int:
    recorded = load_record()
    told = [f"{name}: {each}" for name, found in measured(names).items() for each in differences(recorded, found, name)]
    print("\n".join(told) or "all as recorded")
    return 1 if told else 0


def _dump(checkpoint: str) -> None:
    with tempfile.TemporaryDirectory(prefix="numaserve-golden-") as folder:
        path, digest = make_checkpoint(checkpoint, Path(folder))
        print(f"{checkpoint} {digest} {isa()}")
        for case in make_cases():
            if case.checkpoint != checkpoint:
                continue
            print(f"== {case.serving.key}")
            try:
                found = look(path, case.serving)
            except Refused as error:
                print(f"refused: {error}")
                continue
            for rank in range(case.serving.world):
                print(f"-- rank {rank}: arena of {found.arena[rank]} bytes")
                print("\n".join([*found.nodes[rank], *found.packed[rank], *found.operations[rank]]))
            print("\n".join([*found.planned, *found.answers]))


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.golden", description=__doc__)
    parser.add_argument("command", choices=["record", "check", "measure", "dump", "list"])
    parser.add_argument("what", nargs="?", default="")
    parser.add_argument("--isa", choices=ISAS)
    arguments = parser.parse_args()
    if arguments.command == "record":
        save_record(merge(measured().values()))
    elif arguments.command == "check":
        return _check((arguments.isa,) if arguments.isa else ISAS)
    elif arguments.command == "measure":
        _measure(Path(arguments.what))
    elif arguments.command == "dump":
        _dump(arguments.what)
    else:
        print("\n".join(f"{case.checkpoint}: {case.serving.key}" for case in make_cases()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
