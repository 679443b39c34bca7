"""Every goal of a machine with AMX beside what it reaches, in one run: products, attention, experts, whole steps.

python tests/bench/bench_amx.py [--json FILE]

On another machine the goals are printed alone. `bench kernels` and `bench offline` measure; the goals are those of
`amx_goals.py`, and the status is not that of meeting them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from amx_goals import ELSEWHERE, FEW_ROWS, GOALS, LONG_CONTEXT, MODEL, OTHER_ROWS, SMALL_MODEL, Record
from numaserve.kernels import isa
from numaserve.server.cli.bench_report import MachineReport
from numaserve.workers.bench.kernels import Sizes, enter_node, make_cases
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.rows import Row, Rows

FORMATS = ("bf16", "int8", "int4", "fp8")
SIZES = Sizes(m_values=tuple(sorted(FEW_ROWS + OTHER_ROWS)), decode=LONG_CONTEXT, expert_tokens=(1, 1024))
# Models, and options of `bench offline`.
STEPS: Sequence[Sequence[str]] = (
    ("--shape", MODEL, "--quantization", "bf16"),
    ("--shape", MODEL, "--quantization", "int8", "--quantize-lm-head"),
    ("--shape", MODEL, "--quantization", "int4", "--quantize-lm-head"),
    ("--shape", SMALL_MODEL, "--quantization", "bf16"),
    ("--shape", MODEL, "--quantization", "bf16", "--input-len", str(LONG_CONTEXT)),
)
OFFLINE = [sys.executable, "-m", "numaserve.server.cli.main", "bench", "offline", "--no-operations"]

Say = Callable[[str], None]


def kernel_records(sizes: Sizes, say: Say) -> Iterable[dict[str, Any]]:
    """The rows of `bench kernels` that goals are about."""
    team, cores = enter_node(None)
    meter = Meter(team)
    cases = [*make_cases(["gemm"], FORMATS, sizes), *make_cases(["experts"], ["bf16"], sizes)]
    cases += make_cases(["attention"], [], sizes)
    for index, case in enumerate(cases):
        say(f"{index + 1}/{len(cases)} {case.name}")
        for row in case.run(meter, cores.cpus):
            yield {"table": row.table} | row.what | row.figures


def step_records(options: Sequence[str], say: Say) -> list[dict[str, Any]]:
    """The rows of one `bench offline`, which runs in processes of its own."""
    say(f"bench offline {' '.join(options)}")
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as lines:
        subprocess.run([*OFFLINE, *options, "--json", lines.name], check=True, stdout=subprocess.DEVNULL)
        return [json.loads(line) for line in Path(lines.name).read_text().splitlines()]


def goal_rows(records: Sequence[Record]) -> Rows:
    """A row for each goal: the limit, and what was measured, if anything was."""
    for about, goals in GOALS.items():
        for goal in goals:
            figure = goal.worst(records)
            met = None if figure is None else "yes" if goal.met(figure) else "no"
            yield Row("goals", {"about": about, "goal": goal.what, "wanted": goal.wanted()}, _shown(figure, met))
    for each in ELSEWHERE:
        what = {"about": f"by {each.measured_by}", "goal": each.what, "wanted": each.wanted}
        yield Row("goals", what, _shown(None, None))


def _shown(figure: float | None, met: str | None) -> dict[str, Any]:
    return {"of_measured": figure, "met": met}


def main() -> int:
    """Measure where there is AMX; print the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    with MachineReport("amx", parser.parse_args().json) as report:
        records: list[Record] = []
        if isa().startswith("amx"):
            for record in kernel_records(SIZES, report.say):
                report.write(record)
                records.append(record)
            for options in STEPS:
                records += step_records(options, report.say)
        else:
            report.console.print(f"{isa()}: this processor has no AMX, or is told not to use it; nothing is measured")
        report.add(goal_rows(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
