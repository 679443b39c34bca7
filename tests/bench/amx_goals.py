"""What is expected of a machine with AMX, as data: `bench_amx.py` measures it.

A goal is a fraction of the machine's own ceilings in the same run, or of another figure of the run. It is met by the
worst of the rows that it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]  # a row of a benchmark, as `--json` writes it
Measure = Callable[[Sequence[Record]], list[float]]


@dataclass(frozen=True)
class Goal:
    """`measure` gives a figure for each row that the goal is about, none for other rows."""

    what: str
    measure: Measure
    least: float | None = None  # the figure is a fraction that should be reached
    most: float | None = None  # or one that should not be exceeded

    def worst(self, records: Sequence[Record]) -> float | None:
        """The figure that decides, None where nothing was measured."""
        figures = self.measure(records)
        if not figures:
            return None
        return min(figures) if self.least is not None else max(figures)

    def met(self, figure: float) -> bool:
        """Whether the figure is as good as it should be."""
        return figure >= self.least if self.least is not None else figure <= (self.most or 0.0)

    def wanted(self) -> str:
        """The limit, for people."""
        return f"≥ {self.least:.0%}" if self.least is not None else f"≤ {self.most:.2f} x"


@dataclass(frozen=True)
class Elsewhere:
    """A goal that needs more than this machine: another server, or a checkpoint."""

    what: str
    wanted: str
    measured_by: str


def _rows(figure: str, **where: object) -> Measure:
    """`figure` of the rows with these fields; a function says whether a field's value is meant."""

    def fits(record: Record) -> bool:
        return all(
            name in record and (value(record[name]) if callable(value) else record[name] == value)
            for name, value in where.items()
        )

    return lambda records: [record[figure] for record in records if fits(record)]


def _of_bf16_time(name: str) -> Measure:
    """The time of products in a format over that of the same products in bf16."""

    def ratios(records: Sequence[Record]) -> list[float]:
        times = {
            (each["format"], each["model"], each["product"], each["M"]): each["best_us"]
            for each in records
            if "product" in each and each["M"] in FEW_ROWS
        }
        return [
            time / times["bf16", *case]
            for (format, *case), time in times.items()
            if _name(format) == name and ("bf16", *case) in times
        ]

    return ratios


def _name(format: str) -> str:
    """A format without the size of its groups."""
    return format.partition("/")[0]


def _products(format: str, m: Callable[[int], bool]) -> Measure:
    return _rows("of_ceiling", format=lambda found: _name(found) == format, product=lambda _: True, M=m)


def _experts(format: str, m: int) -> Measure:
    operations = ("moe_gate_up", "moe_down")
    return _rows("of_ceiling", format=format, operation=lambda name: name in operations, M=m)


def _steps(phase: str, model: str, weights: str, context: Callable[[int], bool] = lambda _: True) -> Measure:
    return _rows("of_bound", phase=phase, model=model, weights=lambda found: found.startswith(weights), context=context)


FEW_ROWS, OTHER_ROWS = (2, 4, 8, 16, 32, 64), (1, 256, 512, 1024)
LONG_CONTEXT = 8192
MODEL, SMALL_MODEL = "llama-1b", "smollm2-135m"

GOALS: dict[str, tuple[Goal, ...]] = {
    "products of Llama-1B and Llama-8B, of the ceiling": (
        Goal("bf16, M of 512 and more", _products("bf16", lambda m: m >= 512), least=0.60),
        Goal("bf16, M = 256", _products("bf16", lambda m: m == 256), least=0.50),
        Goal("int8, M of 256 and more", _products("int8", lambda m: m >= 256), least=0.50),
        Goal("bf16, M of 1 to 16", _products("bf16", lambda m: m <= 16), least=0.95),
        Goal("int8, M of 1 to 16", _products("int8", lambda m: m <= 16), least=0.92),
        Goal("fp8, M of 1 to 16", _products("fp8", lambda m: m <= 16), least=0.80),
        Goal("int4, M of 1 to 16", _products("int4", lambda m: m <= 16), least=0.80),
        Goal("bf16, M of 2 to 64", _products("bf16", lambda m: m in FEW_ROWS), least=0.85),
        Goal("int8, M of 2 to 64", _products("int8", lambda m: m in FEW_ROWS), least=0.85),
        Goal("fp8, M of 2 to 64", _products("fp8", lambda m: m in FEW_ROWS), least=0.75),
        Goal("int4, M of 2 to 64", _products("int4", lambda m: m in FEW_ROWS), least=0.75),
        Goal("fp8, M of 2 to 64, of bf16's time", _of_bf16_time("fp8"), most=1.0),
        Goal("int4, M of 2 to 64, of bf16's time", _of_bf16_time("int4"), most=1.0),
    ),
    "attention, of the ceiling": (
        Goal(
            "prefill of 4096 tokens, head_dim 64",
            _rows("of_ceiling", phase="prefill", kv="bf16", head_dim=64, context=lambda _: True),
            least=0.60,
        ),
        Goal(
            "prefill of 4096 tokens, head_dim 128",
            _rows("of_ceiling", phase="prefill", kv="bf16", head_dim=128, context=lambda _: True),
            least=0.30,
        ),
        Goal(
            "decode over 8192 tokens",
            _rows("of_ceiling", phase="decode", kv="bf16", head_dim=lambda _: True),
            least=0.85,
        ),
    ),
    "experts alone, of the ceiling": (
        Goal("bf16, one token", _experts("bf16", 1), least=0.85),
        Goal("bf16, 1024 tokens", _experts("bf16", 1024), least=0.40),
    ),
    "whole steps, of the bound": (
        Goal(
            "Llama-1B, prefill of 1024 tokens, bf16",
            _steps("prefill", MODEL, "bf16", lambda c: c < LONG_CONTEXT),
            least=0.52,
        ),
        Goal("Llama-1B, decode, bf16", _steps("decode", MODEL, "bf16", lambda c: c < LONG_CONTEXT), least=0.92),
        Goal("Llama-1B, decode, int8", _steps("decode", MODEL, "int8"), least=0.92),
        Goal("Llama-1B, decode, int4", _steps("decode", MODEL, "int4"), least=0.88),
        Goal("SmolLM2-135M, decode, bf16", _steps("decode", SMALL_MODEL, "bf16"), least=0.88),
        Goal(
            "Llama-1B, decode behind 8192 tokens, bf16",
            _steps("decode", MODEL, "bf16", lambda c: c >= LONG_CONTEXT),
            least=0.80,
        ),
    ),
}

_COMPARE, _OFFLINE = "bench compare, beside another server", "bench offline, of a checkpoint"
# TTFT and TPOT are of Llama-1B's shape, 1024 tokens in, 128 out.
ELSEWHERE = (
    Elsewhere("TTFT, bf16, beside vLLM", "≤ 0.45 x", _COMPARE),
    Elsewhere("TTFT, int8, beside vLLM's W8A8", "≤ 0.55 x", _COMPARE),
    Elsewhere("tokens/s of 16 clients, bf16, beside the best", "≥ 1.8 x", _COMPARE),
    Elsewhere("TPOT, int8, beside llama.cpp's Q8_0", "≤ 0.80 x", _COMPARE),
    Elsewhere("TPOT, int4, beside llama.cpp's Q4_0", "≤ 0.85 x", _COMPARE),
    Elsewhere("96 experts of 384, 8 a token: decode, bf16", "≥ 80%", _OFFLINE),
    Elsewhere("96 experts of 384, 8 a token: decode, int8", "≥ 75%", _OFFLINE),
    Elsewhere("96 experts of 384, 8 a token: decode, fp8 and int4", "≥ 70%", _OFFLINE),
    Elsewhere("DeepSeek-V3's heads, 64 experts: decode, bf16", "≥ 80%", _OFFLINE),
)
