"""The team's barrier compared with OpenMP's, on the same processors."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from numaserve.kernels import barrier_ns
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.rows import Row, Rows

_RUNS = 3
_OPENMP_BARRIER = """
#include <omp.h>
#include <stdio.h>
int main(void) {
  enum { kBarriers = 20000, kPasses = 7 };
  double best = 1e9;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double begin = omp_get_wtime();
#pragma omp parallel
    for (int i = 0; i < kBarriers; ++i) {
#pragma omp barrier
    }
    const double time = omp_get_wtime() - begin;
    if (time < best) best = time;
  }
  printf("%g", best / kBarriers * 1e9);
  return 0;
}
"""


def bench_barrier(meter: Meter, cpus: Sequence[int]) -> Rows:
    """Measure the team's barrier and OpenMP's, on one thread per processor; the team spins only while it is
    measured."""
    ours = barrier_ns(meter.team)
    mine = os.sched_getaffinity(0)
    # The team pinned this thread, and children inherit that.
    os.sched_setaffinity(0, cpus)
    theirs = _openmp_barrier_ns(cpus)
    os.sched_setaffinity(0, mine)
    ours = min(ours, barrier_ns(meter.team))
    figures: dict[str, str | float | None] = {"team_ns": ours, "openmp_ns": theirs}
    if isinstance(theirs, float):
        figures["openmp_over_team"] = theirs / ours
    yield Row("barrier", {"threads": len(cpus)}, dict(figures))


def _openmp_barrier_ns(cpus: Sequence[int]) -> float | str:
    """Return nanoseconds, or the reason why there is no figure."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if compiler is None:
        return "skipped: no C compiler found"
    environment = os.environ | {
        "OMP_NUM_THREADS": str(len(cpus)),
        "OMP_PLACES": ",".join(f"{{{cpu}}}" for cpu in cpus),
        "OMP_PROC_BIND": "true",
        "OMP_WAIT_POLICY": "active",
    }
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "barrier.c", Path(folder) / "barrier"
        source.write_text(_OPENMP_BARRIER)
        built = subprocess.run([compiler, "-O2", "-fopenmp", source, "-o", program], check=False, capture_output=True)
        if built.returncode != 0:
            return f"skipped: {compiler} cannot build OpenMP programs"
        runs = [subprocess.run([program], check=True, capture_output=True, env=environment) for _ in range(_RUNS)]
        return min(float(each.stdout) for each in runs)
