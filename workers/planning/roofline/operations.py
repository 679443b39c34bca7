"""What the operations of a step have to read, compute and exchange, as functions of the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

ATTENTION_BLOCK = 256  # tokens that attention takes together, as native code has it

# What an operation's efficiency is looked up by. "rows": what does little with each token but read and write it.
Kind = Literal["gemm", "experts", "attention", "latent", "rows", "sample", "exchange"]


@dataclass(frozen=True)
class StepWork:
    """What a step is asked for: of each sequence the position of its first new token and how many there are, and how
    many rows of logits are wanted."""

    sequences: Sequence[tuple[int, int]]
    logit_rows: int

    @property
    def tokens(self) -> int:
        """New tokens of all sequences."""
        return sum(count for _, count in self.sequences)


@dataclass(frozen=True)
class Amount:
    """What an operation of one step comes to on one rank. `nbytes` and `flops` are what the Program counts: weights and
    KV cache that are read, and operations; with experts both are expected values."""

    nbytes: float = 0.0
    flops: float = 0.0
    rows: float = 0.0  # that share a weight once it is read
    touched: float = 0.0  # bytes of activations, where those are what takes the time
    pieces: float = 1.0  # that those can be divided into among the cores
    repeated: float = 0.0  # bytes that every core has to read where there are fewer rows than cores
    fetched: float = 0.0  # bytes read from the memory of other ranks
    meetings: int = 0  # how often the ranks wait for each other


@dataclass(frozen=True)
class Operation:
    """One node of a Program. `weights` is what they are held in ("int4/32"), `computes` what is multiplied."""

    name: str
    kind: Kind
    amount: Callable[[StepWork], Amount]
    weights: str = "bf16"
    computes: str = "bf16"


def attended(step: StepWork, window: int) -> tuple[int, int]:
    """Positions whose keys and values are read, and pairs of a query and a key, for one head. `window` 0: no limit."""
    positions = pairs = 0
    for start, rows in step.sequences:
        seen = window or start + rows
        growing = min(max(seen - start, 0), rows)  # tokens that see everything before them
        positions += start + rows - max(start - seen + 1, 0)
        pairs += growing * start + growing * (growing + 1) // 2 + (rows - growing) * seen
    return positions, pairs


def part_of_blocks(tokens: int, world: int, rank: int) -> int:
    """Tokens in those blocks of a sequence that come to `rank` when `world` ranks take them in turn."""
    starts = range(rank * ATTENTION_BLOCK, tokens, world * ATTENTION_BLOCK)
    return sum(min(ATTENTION_BLOCK, tokens - start) for start in starts)


def expected_share(num_experts: int, top_k: int, tokens: int) -> float:
    """The expected fraction of the experts that `tokens` tokens go to, each to `top_k` of them, all alike."""
    return 1.0 - (1.0 - top_k / num_experts) ** tokens
