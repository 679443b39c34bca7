"""`python -m tests.support.golden` record | check [CHECKPOINT...] [--isa ISA] | dump CHECKPOINT | list.

`record` writes the record, `check` compares all checkpoints or some with it, on both instruction sets at once or on
one; each in a process of its own. `dump` prints all that the cases of a checkpoint come to, line by line, so that two
trees can be compared with diff where `check` finds a difference. `list` prints the cases.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.golden.adapter import Refused, isa, look
from tests.support.golden.cases import CHECKPOINTS, make_cases
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


def measured(isas: tuple[str, ...] = ISAS, names: Sequence[str] = tuple(CHECKPOINTS)) -> dict[str, Record]:
    """Records of the checkpoints of those names by instruction set, each made by a process of its own, all at once."""
    with tempfile.TemporaryDirectory(prefix="numaserve-golden-") as folder:
        files = {each: Path(folder) / each for each in isas}
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.golden", "measure", str(file), *names],
                env=os.environ | {"NUMASERVE_ISA": each},
                cwd=Path(__file__).parents[3],
            )
            for each, file in files.items()
        ]
        statuses = [process.wait() for process in running]
        if any(statuses):
            raise SystemExit("the golden record could not be made: see above")
        return {each: json.loads(file.read_text()) for each, file in files.items()}


def _measure(file: Path, names: Sequence[str]) -> None:
    begin = time.perf_counter()
    record = measure(isa(), names)
    file.write_text(json.dumps(record))
    count = sum(len(cases) - 1 for cases in record.values())
    print(f"{isa()}: {count} cases in {time.perf_counter() - begin:.0f} s", flush=True)


def _check(isas: tuple[str, ...], names: Sequence[str]) -> int:
    recorded, found = load_record(), measured(isas, names)
    told = [f"{each}: {line}" for each in isas for line in differences(recorded, found[each], each, names)]
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
    parser.add_argument("names", nargs="*", metavar="CHECKPOINT", help="default: all")
    parser.add_argument("--isa", choices=ISAS)
    arguments = parser.parse_intermixed_args()
    names = arguments.names or tuple(CHECKPOINTS)
    if arguments.command == "record":
        save_record(merge(measured().values()))
    elif arguments.command == "check":
        return _check((arguments.isa,) if arguments.isa else ISAS, names)
    elif arguments.command == "measure":  # what the others have processes for
        _measure(Path(names[0]), names[1:])
    elif arguments.command == "dump":
        for name in names:
            _dump(name)
    else:
        print("\n".join(f"{case.checkpoint}: {case.serving.key}" for case in make_cases()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
