"""``numaserve serve`` over the workers of a run.

``python -m tests.chaos.serve WAY CELLS RANKS SECONDS serve MODEL ...``

`WAY` is `execute`, or `fork`: the workers are then forked from a process that has imported what they need.
`SECONDS` are those without progress after which a worker that loads is taken to hang: the product has minutes for that,
which no run can wait for. Of compiled grammars as few are kept as are kept from the first minute on: faults bring new
ones, which would fill the product's 256 MiB for longer than a run takes, and memory would not show what leaks.
"""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import cast

from numaserve.server.cli import main
from numaserve.server.service import start
from numaserve.server.structured import grammars
from numaserve.server.structured.grammar_cache import GrammarCache
from numaserve.server.supervisor import group

from tests.support.forked import members_and_workers_forked, prepare

_WORKER = "tests.chaos.worker"
_KEPT_BYTES = 32 * 2**20  # some five grammars, by what compiling them takes


def serve() -> None:
    """Put the command of the run's workers in place of theirs, and run the command line."""
    way, cells, ranks, seconds, *words = sys.argv[1:]
    sys.argv[1:] = words
    group.LOAD_DEADLINE_S = float(seconds)
    grammars.GrammarCache = cast("type[GrammarCache]", lambda _: GrammarCache(_KEPT_BYTES))
    command: Sequence[str] = (sys.executable, "-m", _WORKER, cells, ranks)
    start.run_service = cast("type[start.run_service]", partial(start.run_service, worker_command=command))
    prepare([_WORKER])
    with members_and_workers_forked() if way == "fork" else nullcontext():
        main.main()


if __name__ == "__main__":
    serve()
