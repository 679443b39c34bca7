"""What is recorded: pairs of a checkpoint and a way to serve it, such that any two settings meet in some case."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any

from tests.support.golden.checkpoints import save_model
from tests.support.golden.families import FAMILIES, NEWER_FAMILIES
from tests.support.golden.gguf_files import GGUF_FILES
from tests.support.golden.published import PUBLISHED

LONG = 200  # tokens from which on ranks divide a sequence, where they do


@dataclass(frozen=True)
class Serving:
    """How a checkpoint is served. `shares`: cores by rank. A format of None is the checkpoint's own."""

    linear: Any
    lm_head: Any
    activations: Any
    shares: tuple[int, ...]
    kv_dtype: Any
    expert_parallel: bool
    context_parallel_from: int | None

    @property
    def world(self) -> int:
        """How many ranks."""
        return len(self.shares)

    @property
    def key(self) -> str:
        """All of it in a few words."""
        formats = f"{self.linear or 'own'}/{self.lm_head or 'own'} x {self.activations}, kv {self.kv_dtype}"
        ranks = "+".join(map(str, self.shares))
        experts = ", whole experts" if self.expert_parallel else ""
        return f"{formats}, cores {ranks}{experts}{', divided' if self.context_parallel_from else ''}"


@dataclass(frozen=True)
class Case:
    """A checkpoint by its name, and how it is served."""

    checkpoint: str
    serving: Serving


CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    **{name: (lambda path, make=make: save_model(make(), path)) for name, make in (FAMILIES | NEWER_FAMILIES).items()},
    **PUBLISHED,
    **GGUF_FILES,
}

_OWN = (None, None)
_TO_QUANTIZE = (_OWN, ("int8", "int8"), ("int4", "int8_group"), ("int8_group", "bf16"), ("fp8", "fp8"))
_OF_PUBLISHED = (_OWN, ("bf16", "int8"), (None, "int4"))
_OF_GGUF = (_OWN, ("bf16", "bf16"))
_SHARES = ((1,), (1, 1), (2, 3, 2))
_WITH_EXPERTS = ("mixtral", "moe", "gpt_oss", "deepseek")
_WITH_LATENTS = ("deepseek",)


_ACTIVATIONS, _KV_DTYPES = ("bf16", "int8"), ("bf16", "int8", "fp8_e4m3")
Row = tuple[Any, ...]  # checkpoint, formats, shares, activations, KV cache, whole experts, divided


@functools.cache
def make_cases() -> list[Case]:
    """All cases, those of a checkpoint together. Each checkpoint comes in each of its formats on each number of ranks,
    and what else there is to choose is chosen such that any two settings meet somewhere."""
    parts = ((FAMILIES, _TO_QUANTIZE), (PUBLISHED, _OF_PUBLISHED), (GGUF_FILES, _OF_GGUF))
    chosen = [*_choose(*parts), *_choose((NEWER_FAMILIES, _TO_QUANTIZE))]
    names = list(CHECKPOINTS)
    chosen.sort(key=lambda row: names.index(row[0]))
    return [Case(name, Serving(*formats, act, shares, *rest)) for name, formats, shares, act, *rest in chosen]


def _choose(*parts: tuple[Iterable[str], Sequence[Any]]) -> list[Row]:
    """Some of the rows of checkpoints and the formats of each."""
    groups = [
        [
            row
            for rest in product(_ACTIVATIONS, _KV_DTYPES, (False, True), (None, LONG))
            if _is_possible(row := (*triple, *rest))
        ]
        for names, formats in parts
        for triple in product(names, formats, _SHARES)
    ]
    missing = {pair for rows in groups for row in rows for pair in _pairs(row)}
    chosen = []
    for rows in groups:
        chosen.append(max(rows, key=lambda row: len(_pairs(row) & missing)))
        missing -= _pairs(chosen[-1])
    for row in chain.from_iterable(groups):
        if not missing.isdisjoint(_pairs(row)):
            chosen.append(row)
            missing -= _pairs(row)
    return chosen


def _pairs(row: Row) -> set[tuple[Any, ...]]:
    return set(combinations(enumerate(row), 2))


def _is_possible(row: Row) -> bool:
    name, _, shares, _, kv_dtype, expert_parallel, divided = row
    if expert_parallel and (len(shares) == 1 or not any(word in name for word in _WITH_EXPERTS)):
        return False
    latent = any(word in name for word in _WITH_LATENTS)
    return not (latent and kv_dtype != "bf16") and not (divided and (len(shares) == 1 or not latent))
