"""What is expected of machines with AMX: every expectation is measured, elsewhere over tiles in software."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from numaserve.kernels import Team, available_isas
from numaserve.workers.bench.kernels import Sizes
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.rows import Effort
from numaserve.workers.bench.shapes import SHAPES, Shape
from numaserve.workers.interface.protocol import Ceilings
from numaserve.workers.planning.roofline.expert_shapes import EXPERT_SHAPES

FOLDER = Path(__file__).parents[1] / "bench"
AMX = [name for name in available_isas() if name.startswith("amx")]
# As wide in a head as the models that the expectations are about, and else as small as can be.
TINY = {
    "llama-1b": Shape(64, 1, 1, 1, 64, 32, 64, tied=True),
    "llama-8b": Shape(64, 1, 1, 1, 128, 32, 64, tied=True),
}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    module = importlib.import_module("bench_amx")
    ceilings = Ceilings("any", 1, 1e9, dict.fromkeys(module.FORMATS, 1e9))
    monkeypatch.setattr(Meter, "ceilings", lambda *_: ceilings)
    monkeypatch.setattr("numaserve.workers.bench.programs._STEP_BYTES", 1)
    return module


def steps_of(options: list[str], text: str) -> list[dict[str, Any]]:
    """The rows of whole steps, whose model and weights are those that were asked for."""
    asked = dict(zip(options[::2], options[1::2], strict=False))
    rows = [json.loads(line) for line in text.splitlines()]
    longer = int(asked.get("--input-len", 0))
    for row in rows:
        if row["table"] == "steps":
            row |= {"model": asked["--shape"], "weights": asked["--quantization"], "context": longer + row["context"]}
    return rows


@pytest.mark.skipif(not AMX, reason="needs AVX-512")
def test_every_expectation_is_measured(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMASERVE_ISA", AMX[0])
    monkeypatch.setattr(bench, "enter_node", lambda _: (Team([-1]), _Cores()))
    for name, shape in TINY.items():
        monkeypatch.setitem(SHAPES, name, shape)
    for name in Sizes().expert_models:
        monkeypatch.setitem(EXPERT_SHAPES, name, EXPERT_SHAPES["tiny"])
    sizes = bench.SIZES
    tiny = Sizes(m_values=sizes.m_values, expert_tokens=sizes.expert_tokens, prefill=40, decode=70, effort=Effort(0, 1))
    records = list(bench.kernel_records(tiny, lambda _: None))
    # One run of whole steps stands for all: emulation would take minutes to find the ceilings.
    monkeypatch.delenv("NUMASERVE_ISA")
    small = ["--shape", "tiny", "--input-len", "33", "--output-len", "3", "--prefills", "1"]
    text = "\n".join(json.dumps(row) for row in bench.step_records(small, lambda _: None))
    for options in bench.STEPS:
        records += steps_of(list(options), text)
    rows = list(bench.goal_rows(records))
    expected = [goal.what for goals in bench.GOALS.values() for goal in goals]
    assert [row.what["goal"] for row in rows if row.figures["met"] is not None] == expected


def test_the_worst_row_decides(bench: ModuleType) -> None:
    goal = bench.GOALS["products of Llama-1B and Llama-8B, of the ceiling"][0]
    rows = [{"format": "bf16", "product": "o", "M": m, "of_ceiling": of} for m, of in ((512, 0.7), (1024, 0.6))]
    assert (goal.worst(rows), goal.met(0.6)) == (0.6, True)
    rows += [rows[0] | {"format": "int8", "of_ceiling": 0.1}, rows[0] | {"M": 256, "of_ceiling": 0.2}]
    assert goal.worst(rows) == 0.6
    rows.append(rows[0] | {"product": "qkv", "of_ceiling": 0.59})
    assert (goal.worst(rows), goal.met(0.59)) == (0.59, False)


def test_formats_are_set_beside_bf16_product_by_product(bench: ModuleType) -> None:
    goals = {goal.what: goal for goals in bench.GOALS.values() for goal in goals}
    goal = goals["int4, M of 2 to 64, of bf16's time"]
    case = {"model": "llama-1b", "product": "o", "M": 16}
    rows = [case | {"format": "bf16", "best_us": 10.0}, case | {"format": "int4/32", "best_us": 8.0}]
    assert (goal.worst(rows), goal.met(0.8), goal.met(1.01)) == (0.8, True, False)
    rows += [case | {"format": "int4/128", "best_us": 12.0}, case | {"M": 512, "format": "int4/128", "best_us": 99.0}]
    assert goal.worst(rows) == 1.2


def test_without_amx_the_expectations_are_told_alone(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "isa", lambda: "avx512")
    monkeypatch.setattr("sys.argv", ["bench_amx.py"])
    assert bench.main() == 0
    out = capsys.readouterr().out
    assert "avx512: this processor has no AMX" in out
    assert all(goal.what in out for goals in bench.GOALS.values() for goal in goals)


class _Cores:
    cpus = (0,)
