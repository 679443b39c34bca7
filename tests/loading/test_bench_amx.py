"""The goals of machines with AMX: each is measured, elsewhere over tiles in software, and decided by the right rows."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from numaserve.kernels import Program, Team, available_isas
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.operations.share import RANKS, bench_share
from numaserve.workers.bench.programs import BF16, Spent, spent_in_step
from numaserve.workers.bench.rows import Effort, Limits
from numaserve.workers.bench.shapes import SHAPES, Shape
from numaserve.workers.interface.protocol import Ceilings
from numaserve.workers.planning.roofline.expert_shapes import EXPERT_SHAPES

from tests.bench import amx_goals
from tests.bench import bench_amx as bench
from tests.bench.goals import LARGE, LARGE_SHARE, MIXTURE, PROMPT, SHARED, STREAMS

AMX = [name for name in available_isas() if name.startswith("amx")]
# Heads as wide as in the models that the goals are about, and everything else as small as possible.
TINY = {
    "llama-1b": Shape(64, 1, 1, 1, 64, 32, 64, tied=True),
    "llama-8b": Shape(64, 1, 1, 1, 128, 32, 64, tied=True),
}
TOKENS = {1024: 40, 4096: 41}  # of prompts
SMALL_STEPS = ("--shape", "tiny", "--input-len", "33", "--output-len", "3", "--prefills", "1")


GOALS = {f"{about}: {goal.what}": goal for about, goals in amx_goals.GOALS.items() for goal in goals}


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark with tiny models, fixed ceilings and AMX in software."""
    peaks = dict.fromkeys(("bf16", "int8", "int4", "mxfp4", "fp8"), 1e12)
    monkeypatch.setattr(Meter, "limits", lambda *_: Limits(Ceilings("any", 1, 1e9, peaks), peaks, peaks))
    monkeypatch.setattr("numaserve.workers.bench.programs._STEP_BYTES", 1)
    monkeypatch.setenv("NUMASERVE_ISA", AMX[0])
    for name, shape in TINY.items():
        monkeypatch.setitem(SHAPES, name, shape)
    for name in (LARGE, LARGE_SHARE):
        monkeypatch.setitem(RANKS, name, TINY[LARGE])
    for name in (MIXTURE, SHARED):
        monkeypatch.setitem(EXPERT_SHAPES, name, EXPERT_SHAPES["tiny"])


def tiny(kernels: Any) -> Any:
    sizes = kernels.sizes
    return replace(kernels, sizes=replace(sizes, prefill=TOKENS.get(sizes.prefill), effort=Effort(0, 1)))


def as_asked(record: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a prompt of the length that a goal is about."""
    lengths = {short: tokens for tokens, short in TOKENS.items()}
    return {**record, "context": lengths.get(record.get("context", 0))}


@pytest.mark.usefixtures("_small")
@pytest.mark.skipif(not AMX, reason="needs AVX-512")
def test_every_goal_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [tiny(each) for each in bench.KERNELS]
    records = [as_asked(each) for each in bench.kernel_records(kernels, Team([-1]), [-1], lambda _: None)]
    # One run of whole steps stands for all: emulation would take minutes to find the ceilings.
    monkeypatch.delenv("NUMASERVE_ISA")
    limits = Limits(Ceilings("any", 1, 1e9, {"bf16": 1e12}), {"bf16": 1e12}, {"bf16": 1e12})
    steps = bench.step_records("any", SMALL_STEPS, limits, lambda _: None)
    records += [{**step, "run": run} for run in bench.STEPS for step in steps]
    rows = [row for row in bench.goal_rows(records) if row.table == "goals"]
    assert [row.what["goal"] for row in rows if row.figures.get("met")] == [goal.what for goal in GOALS.values()]
    assert [row.what["goal"] for row in rows if not row.figures] == [each.what for each in amx_goals.ELSEWHERE]


def product(**fields: object) -> dict[str, Any]:
    row = {"model": "llama-1b", "format": "bf16", "product": "gate_up", "M": 512, "weights_of": "memory"}
    return row | {"best_us": 10.0, "of_ceiling": 0.5} | fields


def test_the_worst_row_decides() -> None:
    goal = GOALS["Llama-1B, products, of the ceiling: bf16, o and down, M = 512"]
    rows = [product(product=name, of_ceiling=of, weights_of="caches") for name, of in (("o", 0.46), ("down", 0.45))]
    assert (goal.worst(rows)["of_ceiling"], goal.met(goal.worst(rows)), goal.wanted()) == (0.45, True, "≥ 45%")
    others = {"format": "int8"}, {"M": 64}, {"weights_of": "memory"}, {"model": "llama-8b"}, {"product": "qkv"}
    rows += [rows[1] | other | {"of_ceiling": 0.1} for other in others]
    assert goal.worst(rows)["of_ceiling"] == 0.45
    rows.append(rows[0] | {"of_ceiling": 0.449})
    assert not goal.met(goal.worst(rows))
    assert goal.worst(rows[2:-1]) is None


def test_formats_are_compared_with_bf16_product_by_product() -> None:
    goal = GOALS["Llama-1B, M = 512, speed over bf16's: int4 in groups of 32, times bf16"]
    down = {"product": "down", "best_us": 40.0}
    rows = [product(), product(**down), product(format="int4/32", best_us=11.0)]
    assert goal.worst(rows)["of_bf16"] == pytest.approx(10 / 11)
    rows += [product(format="int4/32", product="down", best_us=50.0)]
    assert (goal.worst(rows)["of_bf16"], goal.met(goal.worst(rows))) == (0.8, False)
    # Neither other groups, nor activations in int8, nor products that bf16 has no row of.
    rows += [product(format=name, best_us=999.0) for name in ("int4/128", "int4/32 x int8")]
    rows += [product(format="int4/32", product="o", best_us=999.0)]
    assert goal.worst(rows)["of_bf16"] == 0.8


def test_a_goal_shows_fractions_of_peaks_where_computing_bounds_and_what_it_would_change_where_missed() -> None:
    rows = [
        product(ceiling=ceiling, of_random=0.7, of_nest=0.87, M=m) for ceiling, m in (("flops", 512), ("read", 128))
    ]
    found = list(bench.goal_rows(rows))
    shown = {(row.what["about"], row.what["goal"]): row.figures for row in found if row.figures.get("met")}
    peaks = {"of_zeros": 0.5, "of_random": 0.7, "of_nest": 0.87}
    products, nest = "Llama-1B, products, of the ceiling", "Llama-1B, products of 512 rows from memory, of the nest"
    assert shown == {
        (products, "bf16, gate_up, M = 512, from memory"): {"of_measured": 0.5, "met": "yes"} | peaks,
        (products, "bf16, M = 128, from memory"): {"of_measured": 0.5, "met": "no"} | dict.fromkeys(peaks),
        (nest, "bf16"): {"of_measured": 0.87, "met": "no"} | peaks,
    }
    changes = {row.what["goal"]: row.what["would_change"] for row in found if row.table == "missed goals"}
    assert changes == {
        name: GOALS[name].change for name in (f"{products}: bf16, M = 128, from memory", f"{nest}: bf16")
    }


@pytest.mark.skipif(not AMX, reason="needs AVX-512")
def test_a_share_is_the_work_of_one_of_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks, team, sizes = {"bf16": 1e12}, Team([-1]), []
    monkeypatch.setattr(Meter, "limits", lambda *_: Limits(Ceilings("any", 1, 1e9, peaks), peaks, peaks))
    monkeypatch.setitem(RANKS, LARGE, Shape(64, 1, 2, 1, 64, 96, 64, tied=True))

    def spent(program: Program, names: list[str], run: object) -> list[Spent]:
        sizes.append(team.size)
        return spent_in_step(program, names, run)

    monkeypatch.setattr("numaserve.workers.bench.operations.share.spent_in_step", spent)
    what = {"model": LARGE, "part": "mlp", "format": BF16, "m_values": [256], "threads": 7}
    gate_up, down = bench_share(Meter(team), Effort(0, 1), **what)
    # Of 8 x 6 and 8 x 2 units of 32 rows and columns the first of seven threads has 6 and 2.
    for row, units, k in ((gate_up, 6, 64), (down, 2, 96)):
        flops = row.figures["gflop_s"] * row.figures["best_us"] * 1e3
        assert flops == pytest.approx(units * 2 * 32 * 32 * k)
    assert (set(sizes), team.size) == ({7}, 1)
    with pytest.raises(ValueError, match="a team of one"):
        Team([-1, -1]).act_as_first_of(7)


def step_line(*costs: tuple[str, str, float, float | None]) -> list[dict[str, Any]]:
    """The rows of a phase with these operations: name, format, share and GB/s."""
    shown = [
        {"name": name, "format": format, "calls": float(bool(format)), "share": share, "gb_s": gb_s}
        | {"ms": 1.0, "ceiling": "read", "of_ceiling": 0.5}
        for name, format, share, gb_s in costs
    ]
    ceilings = {"read_bytes_s": 20e9, "threads": 2, "flops_s": {"bf16": 8e12}}
    line = {"name": "prefill", "ceilings": ceilings, "costs": shown}
    return list(bench.operation_records(PROMPT, line, {"bf16": 2e12}))


def test_the_rest_of_a_prompt_is_neither_product_nor_attention() -> None:
    goal = next(goal for name, goal in GOALS.items() if name.endswith("neither product nor attention, of the time"))
    costs = [("gate_up", "bf16", 0.5, 1.0), ("linear", "bf16", 0.1, 1.0), ("attention", "bf16", 0.27, 1.0)]
    rows = step_line(*costs, ("rms_norm", "bf16", 0.08, None), ("(between operations)", "", 0.05, None))
    assert [row["operation"] for row in rows] == ["gate_up", "linear", "attention", "rms_norm"]
    assert goal.worst(rows)["share"] == pytest.approx(0.13)
    assert (goal.met(goal.worst(rows)), goal.met({"share": 0.12}), goal.wanted()) == (False, True, "≤ 12%")
    assert goal.worst([{**row, "run": STREAMS} for row in rows]) is None


def test_operations_have_their_fraction_of_the_bandwidth() -> None:
    rows = step_line(("gate_up", "bf16", 0.5, 15.0), ("rms_norm", "bf16", 0.1, None))
    assert [row["of_read"] for row in rows] == [0.75, None]
    assert [row.get("of_nest") for row in rows] == [None, None]


def test_operations_that_compute_have_their_fraction_of_the_nest_of_each_thread() -> None:
    cost = {"name": "gate_up", "format": "bf16", "calls": 1.0, "ms": 1.0, "share": 1.0, "gb_s": 1.0}
    cost |= {"ceiling": "flops", "of_ceiling": 0.45}
    line = {"name": "prefill", "ceilings": {"read_bytes_s": 20e9, "threads": 2, "flops_s": {"bf16": 8e12}}}
    (row,) = bench.operation_records(PROMPT, line | {"costs": [cost]}, {"bf16": 2e12})
    assert row["of_nest"] == pytest.approx(0.9)


def test_a_line_of_bench_offline_becomes_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"table": "operations", "name": "decode", "ceilings": {"read_bytes_s": 10e9}}
    cost = {"name": "attention", "format": "bf16", "calls": 2.0, "ms": 1.0, "share": 1.0, "gb_s": 9.0}
    line |= {"costs": [cost | {"ceiling": "read", "of_ceiling": 0.9}]}

    def run(command: list[str], **_: object) -> None:
        Path(command[-1]).write_text(f"{json.dumps(line)}\n{json.dumps({'table': 'steps'})}\n")
        assert command[-4:-1] == ["--shape", "tiny", "--json"]

    monkeypatch.setattr(bench.subprocess, "run", run)
    limits = Limits(Ceilings("any", 1, 1e9, {}), {})
    (row,) = bench.step_records(STREAMS, ("--shape", "tiny"), limits, lambda _: None)
    assert (row["run"], row["phase"], row["operation"], row["of_read"]) == ("streams", "decode", "attention", 0.9)


def test_without_amx_the_goals_are_printed_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "isa", lambda: "avx512")
    monkeypatch.setattr("sys.argv", ["bench_amx.py"])
    assert bench.main() == 0
    out = capsys.readouterr().out
    assert "avx512: this processor has no AMX" in out
    assert all(goal.what in out for goal in GOALS.values())
