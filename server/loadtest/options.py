"""Options of a load: its prompts and its traffic."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from numaserve.workers.errors import OperatorError


class DatasetName(StrEnum):
    """The origin of prompts."""

    RANDOM_IDS = "random-ids"
    RANDOM = "random"
    SHARED_PREFIX = "generated-shared-prefix"
    SHAREGPT = "sharegpt"
    TRACE = "trace"


@dataclass(frozen=True)
class Workload:
    """The prompts of a load. Lengths are in tokens."""

    dataset_name: DatasetName = DatasetName.RANDOM_IDS
    dataset_path: Path | None = None
    num_prompts: int | None = None
    random_input_len: int = 1024
    random_output_len: int = 128
    random_range_ratio: float = 1.0
    gsp_num_groups: int = 4
    gsp_prompts_per_group: int = 16
    gsp_system_prompt_len: int = 2048
    gsp_question_len: int = 128
    gsp_output_len: int = 256
    sharegpt_output_len: int | None = None
    sharegpt_context_len: int | None = None
    trace_slowdown_factor: float = 1.0

    def __post_init__(self) -> None:
        from_file = self.dataset_name in (DatasetName.SHAREGPT, DatasetName.TRACE)
        if from_file and self.dataset_path is None:
            raise OperatorError(f"--dataset-name {self.dataset_name} reads a file: name it with --dataset-path")
        if not from_file and self.dataset_path is not None:
            raise OperatorError(f"--dataset-name {self.dataset_name} reads no file: leave out --dataset-path")


@dataclass(frozen=True)
class Traffic:
    """The way in which prompts are sent."""

    model: str | None = None
    max_concurrency: int | None = None
    seed: int = 1
    ignore_eos: bool = True
    warmup_requests: int = 1
    flush_cache: bool = False
    api_key: str | None = None
    extra_body: dict[str, Any] = field(default_factory=dict)
    tokenizer: Path | None = None
    vocab_size: int | None = None
    timeout_s: float = 3600.0


def default_rate(workload: Workload) -> float | None:
    """The rate for all requests at once; None for a trace, whose timestamps count."""
    return None if workload.dataset_name is DatasetName.TRACE else math.inf


def parse_rates(given: list[str]) -> list[float]:
    """Requests a second, in the order given; a value may be a list with commas, and ``inf`` is all at once.

    Raises `OperatorError` for what is no positive number.
    """
    rates = []
    for word in ",".join(given).replace(",", " ").split():
        try:
            rate = float(word)
        except ValueError:
            rate = math.nan
        if not rate > 0:
            raise OperatorError(f"--request-rate {word}: expected requests a second above 0, or inf")
        rates.append(rate)
    return rates
