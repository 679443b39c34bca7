"""`python -m tests.simulation [--seeds N] [--first SEED] [--log] [--defect NAME]`: runs seeds until one goes wrong.

Says which one that is and how to see it again, event by event. With a defect, the server is run with it.
"""

import argparse
import sys
import time
from collections import Counter
from contextlib import nullcontext

from tests.simulation.defects import DEFECTS
from tests.simulation.run import Outcome, run


def main(arguments: list[str] | None = None) -> int:
    """Run the seeds that the command line names. Returns 1 when one of them went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument("--log", action="store_true", help="print every event, and the hash of all of them")
    parser.add_argument("--defect", choices=sorted(DEFECTS), help="one that is put into the server")
    options = parser.parse_args(arguments)
    seen: Counter[str] = Counter()
    begun = time.perf_counter()
    with DEFECTS[options.defect].applied() if options.defect else nullcontext():
        for seed in range(options.first, options.first + options.seeds):
            outcome = run(seed)
            seen += outcome.seen
            if options.log:
                _print_log(outcome)
            if outcome.violation:
                print(f"seed {seed}: {outcome.violation}")
                if not options.log:
                    defect = f" --defect {options.defect}" if options.defect else ""
                    print(f"to see it: python -m tests.simulation --first {seed} --seeds 1 --log{defect}")
                return 1
    seconds = time.perf_counter() - begun
    pace = 60 * options.seeds / seconds
    print(f"{options.seeds} seeds from {options.first} on, {pace:.0f} a minute: nothing is wrong")
    print(", ".join(f"{kind} {count}" for kind, count in sorted(seen.items())))
    return 0


def _print_log(outcome: Outcome) -> None:
    print(outcome.scenario)
    for number, request in enumerate(outcome.scenario.requests):
        print(f"client {number}: {request}")
    for seconds, *event in outcome.log:
        print(f"{seconds:12.6f}", *event)
    print(f"hash {outcome.digest}")


if __name__ == "__main__":
    sys.exit(main())
