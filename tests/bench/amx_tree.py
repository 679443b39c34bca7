"""The process of a tree: measures a case whenever it is asked to, by JSON lines, over the packages of that tree.

{"prepare": NUMBER} makes a case, and answers with its checksum, or with "missing" where the tree does not have it.
{"run": NUMBER} measures it once more, and answers with the best microseconds of each of its rows.
"""

import json
import sys
from collections.abc import Iterator
from itertools import islice

from numaserve.workers.bench.kernels import enter_node
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.rows import Row

from tests.bench.amx_rounds import Case, cases


def named_times(rows: Iterator[Row], case: Case) -> dict[str, float]:
    """Return the best microseconds of the next run, by the name of the row."""
    found = {}
    for row in islice(rows, case.rows):
        name = row.what.get("product") or row.what.get("operation") or "attention"
        found[str(name)] = float(str(row.figures["best_us"]))
    return found


def main() -> None:
    """Answer until the end of the input."""
    team, cores = enter_node(None)
    meter, known = Meter(team), cases()
    rows: Iterator[Row] = iter(())
    for line in sys.stdin:
        ((what, number),) = json.loads(line).items()
        case = known[number]
        answer: dict[str, object]
        if what == "run":
            answer = {"times": named_times(rows, case)}
        else:
            try:
                rows = case.measure(meter, cores.cpus)
                answer = {"checksum": case.checksum and case.checksum(team)}
                named_times(rows, case)
            except ImportError as error:
                answer = {"missing": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
