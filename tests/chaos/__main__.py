"""``python -m tests.chaos``: faults upon faults before a server under load, and whether anybody noticed.

The seed draws requests and faults; when exactly they meet is the machine's to say.
"""

import argparse
import random
import signal
import sys

from tests.chaos.report import Report
from tests.chaos.run import Options, run
from tests.chaos.served import ROOT
from tests.support.chat_model import FAMILIES

LOGS = ROOT / "build" / "chaos"


def main() -> int:
    """Run once; the exit status is 1 where a request failed or was answered otherwise, what a server holds
    grew, or a state had no fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="draws requests and faults; default: any")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long faults go on")
    parser.add_argument("--kills", type=int, default=0, help="deaths after which the run ends, in place of a time")
    parser.add_argument("--clients", type=int, default=32, help="that ask at once")
    parser.add_argument("--embeddings", type=int, default=40, help="requests of a second server; 0: there is none")
    parser.add_argument("--family", choices=FAMILIES, default="", help="of the model; default: the seed draws it")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)  # in the background too the servers are ended
    options = Options(seed, given.seconds, given.kills, given.clients, embeddings=given.embeddings, family=given.family)
    report = run(options, _show)
    print("\n".join(report.lines()))
    if not report.is_good:
        LOGS.mkdir(parents=True, exist_ok=True)
        for index, part in enumerate(report.parts):
            path = LOGS / f"{seed}-{index}.log"
            path.write_text(part.log)
            print(f"log        {path}")
    return int(not report.is_good)


def _show(deaths: int, report: Report) -> None:
    """Of a long run how far it is."""
    counts = report.requests.total(), len(report.failed), len(report.different)
    print("kills {}, requests {}, failed {}, different {}".format(deaths, *counts), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
