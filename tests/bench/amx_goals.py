"""What is expected of a machine with AMX, as data: `bench_amx.py` measures it.

A goal is a fraction of the machine's own ceilings in the same run, or of another figure of the run. It is met by the
worst of the rows that it is about. The peak is that of tiles of zeros. The fraction of the peak of random tiles is
printed as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]  # a row of a benchmark, as `--json` writes it
Select = Callable[[Sequence[Record]], Iterable[Record]]
SMALL, LARGE, STREAMED = "llama-1b", "llama-8b", "smollm2-135m"  # shapes
MIXTURE, SHARED = "moe-2b", "moe-shared"  # experts in Qwen3-MoE's proportions, and with a shared one in DeepSeek-V3's
EVERY = ("qkv", "o", "gate_up", "down")  # products of a layer
SERVED_PRODUCTS = ("linear", "linear_partial", "gate_up", "lm_head")  # as operations of a step
PROMPT, STREAMS = "prompt", "streams"  # runs of `bench offline`


@dataclass(frozen=True)
class Goal:
    """`select` returns the rows that the goal is about, of which `figure` is compared."""

    what: str
    select: Select
    least: float | None = None  # the figure is a fraction that should be reached
    most: float | None = None  # or one that should not be exceeded
    figure: str = "of_ceiling"

    def worst(self, records: Sequence[Record]) -> Record | None:
        """Return the row that decides, None where nothing was measured."""
        rows = sorted(self.select(records), key=lambda row: float(row[self.figure]))
        if not rows:
            return None
        return rows[0] if self.least is not None else rows[-1]

    def met(self, row: Record) -> bool:
        """Return whether the figure is as good as it should be."""
        figure = float(row[self.figure])
        return figure >= self.least if self.least is not None else figure <= (self.most or 0.0)

    def wanted(self) -> str:
        """Return the limit, for people."""
        return f"≥ {self.least:.0%}" if self.least is not None else f"≤ {self.most:.0%}"


@dataclass(frozen=True)
class Elsewhere:
    """A goal that needs more than this machine and this run: another server, or an earlier release."""

    what: str
    wanted: str
    measured_by: str


def _where(**fields: object) -> Select:
    """Return a selection of the rows with these fields; a set has the values that are meant."""

    def fits(record: Record) -> bool:
        return all(
            name in record and (record[name] in value if isinstance(value, frozenset) else record[name] == value)
            for name, value in fields.items()
        )

    return lambda records: [record for record in records if fits(record)]


def _products(m: int, format: str, products: Collection[str], *, of: str = "memory", model: str = SMALL) -> Select:
    return _where(model=model, M=m, format=format, product=frozenset(products), weights_of=of)


def _speed_over_bf16(*formats: str) -> Select:
    """Return a selection of the products of 512 rows in some formats, with their speed over bf16's as `of_bf16`."""

    def select(records: Sequence[Record]) -> list[Record]:
        bf16 = {row["product"]: row["best_us"] for row in _products(512, "bf16", EVERY)(records)}
        rows = [row for format in formats for row in _products(512, format, EVERY)(records)]
        return [{**row, "of_bf16": bf16[row["product"]] / row["best_us"]} for row in rows if row["product"] in bf16]

    return select


def _operations(run: str, phase: str, *names: str) -> Select:
    return _where(run=run, phase=phase, operation=frozenset(names))


def _other_operations(run: str, phase: str) -> Select:
    """Return a selection of one row, whose `share` all that is neither product nor attention has of a phase."""

    def select(records: Sequence[Record]) -> list[Record]:
        rows = _where(run=run, phase=phase)(records)
        known = [row["share"] for row in rows if row["operation"] in (*SERVED_PRODUCTS, "attention")]
        return [{"share": 1.0 - sum(known)}] if known else []

    return select


def _experts(model: str, operation: str) -> Select:
    return _where(model=model, format="bf16", M=1024, operation=operation)


def _attention(head_dim: int, tokens: int) -> Select:
    return _where(phase="prefill", kv="bf16", head_dim=head_dim, context=tokens)


GOALS: dict[str, tuple[Goal, ...]] = {
    "Llama-1B, products, of the ceiling": (
        Goal("bf16, gate_up, M = 512", _products(512, "bf16", ("gate_up",), of="caches"), least=0.50),
        Goal("bf16, gate_up, M = 512, from memory", _products(512, "bf16", ("gate_up",)), least=0.44),
        Goal("bf16, o and down, M = 512", _products(512, "bf16", ("o", "down"), of="caches"), least=0.45),
        Goal("bf16, M = 128, from memory", _products(128, "bf16", EVERY), least=0.85),
        Goal("bf16, M = 64, from memory", _products(64, "bf16", EVERY), least=0.75),
        Goal("int8, M = 64, from memory", _products(64, "int8", EVERY), least=0.75),
        Goal("int8, gate_up, M = 512", _products(512, "int8", ("gate_up",), of="caches"), least=0.50),
        Goal("int8, down, M = 512", _products(512, "int8", ("down",), of="caches"), least=0.45),
    ),
    "Llama-1B, M = 512, speed over bf16's": (
        Goal("int4 in groups of 32, times bf16", _speed_over_bf16("int4/32"), least=0.85, figure="of_bf16"),
        Goal("int4 in groups of 128, times bf16", _speed_over_bf16("int4/128"), least=0.85, figure="of_bf16"),
        Goal("mxfp4, times bf16", _speed_over_bf16("mxfp4/32"), least=0.85, figure="of_bf16"),
        Goal("fp8, times bf16", _speed_over_bf16("fp8/128"), least=0.55, figure="of_bf16"),
    ),
    "Llama-8B, products from memory, of the ceiling": (
        Goal("bf16, M = 1", _products(1, "bf16", EVERY, model=LARGE), least=0.95),
        Goal("int8, gate_up, M = 1", _products(1, "int8", ("gate_up",), model=LARGE), least=0.95),
        Goal("int4, gate_up, M = 1", _products(1, "int4/128", ("gate_up",), model=LARGE), least=0.88),
        Goal("int4, o and down, M = 1", _products(1, "int4/128", ("o", "down"), model=LARGE), least=0.85),
        Goal("int8, M = 512", _products(512, "int8", EVERY, model=LARGE), least=0.42),
    ),
    "attention of prompts, of the peak": (
        Goal("1024 tokens, head_dim 64", _attention(64, 1024), least=0.21),
        Goal("4096 tokens, head_dim 64", _attention(64, 4096), least=0.24),
        Goal("1024 tokens, head_dim 128", _attention(128, 1024), least=0.27),
        Goal("4096 tokens, head_dim 128", _attention(128, 4096), least=0.29),
    ),
    "Llama-1B, a prompt of 1024, bf16, of the ceiling": (
        Goal("gate_up", _operations(PROMPT, "prefill", "gate_up"), least=0.45),
        Goal("linear_partial", _operations(PROMPT, "prefill", "linear_partial"), least=0.42),
        Goal("linear", _operations(PROMPT, "prefill", "linear"), least=0.42),
        Goal("attention", _operations(PROMPT, "prefill", "attention"), least=0.20),
        Goal(
            "neither product nor attention, of the time",
            _other_operations(PROMPT, "prefill"),
            most=0.12,
            figure="share",
        ),
    ),
    # Contexts of 64 to 580 tokens, in bf16.
    "SmolLM2-135M, 64 sequences, of the bandwidth": (
        Goal("attention", _operations(STREAMS, "decode", "attention"), least=0.85, figure="of_read"),
        Goal("gate_up", _operations(STREAMS, "decode", "gate_up"), least=0.75, figure="of_read"),
    ),
    "experts, 1024 tokens, bf16, of the ceiling": (
        Goal("Qwen3-MoE's proportions, moe_gate_up", _experts(MIXTURE, "moe_gate_up"), least=0.50),
        Goal("Qwen3-MoE's proportions, moe_down", _experts(MIXTURE, "moe_down"), least=0.45),
        Goal("DeepSeek-V3's proportions, moe_gate_up", _experts(SHARED, "moe_gate_up"), least=0.65),
        Goal("DeepSeek-V3's proportions, moe_down", _experts(SHARED, "moe_down"), least=0.60),
    ),
}

_COMPARE = "bench compare, with another server"
# Llama-1B's shape where no other model is named.
ELSEWHERE = (
    Elsewhere("bf16, TTFT of 1024 tokens, of vLLM's", "≤ 0.66 x", _COMPARE),
    Elsewhere("bf16, 16 clients, 256 tokens in, 64 out: tokens/s, of vLLM's", "≥ 1.45 x", _COMPARE),
    Elsewhere("int8, TTFT of 1024 tokens, of the earlier release's", "≤ 0.85 x", "bench compare, with that release"),
    Elsewhere("Q4_0, 4 prompts of 32 tokens at once: median TTFT, of llama-server's", "≤ 1.00 x", _COMPARE),
    Elsewhere("Qwen3-MoE's proportions, bf16, TTFT of 1024 tokens, of vLLM's", "≤ 0.72 x", _COMPARE),
    Elsewhere("Qwen3-MoE's proportions, bf16, 16 clients: tokens/s, of vLLM's", "≥ 1.3 x", _COMPARE),
    Elsewhere("DeepSeek-V3's heads, bf16, TTFT of 1024 tokens, of vLLM's", "≤ 0.72 x", _COMPARE),
    Elsewhere("DeepSeek-V3's heads, bf16, 16 clients: tokens/s, of vLLM's", "≥ 1.3 x", _COMPARE),
)
