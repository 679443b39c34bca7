"""Goals of a benchmark: which rows of the run decide about a goal, and whether they meet it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]  # a row of a benchmark, as `--json` writes it
Select = Callable[[Sequence[Record]], Iterable[Record]]
SMALL, LARGE, STREAMED = "llama-1b", "llama-8b", "smollm2-135m"  # shapes
MIXTURE, SHARED = "moe-2b", "moe-shared"  # experts in Qwen3-MoE's proportions, and with a shared one in DeepSeek-V3's
LARGE_SHARE = "llama-70b / 6"  # a rank's part on a host of six nodes
EVERY = ("qkv", "o", "gate_up", "down")  # products of a layer
SERVED_PRODUCTS = ("linear", "linear_partial", "gate_up", "lm_head")  # as operations of a step
SHARE_THREADS = 43  # of a node of the largest host with AMX
PROMPT, STREAMS = "prompt", "streams"  # runs of `bench offline`


@dataclass(frozen=True)
class Goal:
    """`select` returns the rows that the goal is about, of which `figure` is compared. `change` is what a missed goal
    would change, for people."""

    what: str
    select: Select
    change: str
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


def where(**fields: object) -> Select:
    """Return a selection of the rows with these fields; a set has the values that are meant."""

    def fits(record: Record) -> bool:
        return all(
            name in record and (record[name] in value if isinstance(value, frozenset) else record[name] == value)
            for name, value in fields.items()
        )

    return lambda records: [record for record in records if fits(record)]


def products(m: int, format: str, names: Collection[str], *, of: str = "memory", model: str = SMALL) -> Select:
    """Return a selection of products of `m` rows, with weights from memory or left in the caches."""
    return where(model=model, M=m, format=format, product=frozenset(names), weights_of=of)


def speed_over_bf16(*formats: str) -> Select:
    """Return a selection of the products of 512 rows in some formats, with their speed over bf16's as `of_bf16`."""

    def select(records: Sequence[Record]) -> list[Record]:
        bf16 = {row["product"]: row["best_us"] for row in products(512, "bf16", EVERY)(records)}
        rows = [row for format in formats for row in products(512, format, EVERY)(records)]
        return [{**row, "of_bf16": bf16[row["product"]] / row["best_us"]} for row in rows if row["product"] in bf16]

    return select


def operations(run: str, phase: str, *names: str) -> Select:
    """Return a selection of operations of a whole step."""
    return where(run=run, phase=phase, operation=frozenset(names))


def other_operations(run: str, phase: str) -> Select:
    """Return a selection of one row, whose `share` all that is neither product nor attention has of a phase."""

    def select(records: Sequence[Record]) -> list[Record]:
        rows = where(run=run, phase=phase)(records)
        known = [row["share"] for row in rows if row["operation"] in (*SERVED_PRODUCTS, "attention")]
        return [{"share": 1.0 - sum(known)}] if known else []

    return select


def experts(model: str, operation: str) -> Select:
    """Return a selection of an operation of experts."""
    return where(model=model, format="bf16", M=1024, operation=operation)


def attention(head_dim: int, tokens: int) -> Select:
    """Return a selection of the attention of a prompt."""
    return where(phase="prefill", kv="bf16", head_dim=head_dim, context=tokens)


def share(model: str, format: str, names: Collection[str]) -> Select:
    """Return a selection of one thread's shares of some products."""
    return where(threads=SHARE_THREADS, model=model, format=format, product=frozenset(names))
