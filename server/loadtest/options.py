"""The options of a load: its prompts and its traffic."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from numaserve.workers.interface.errors import OperatorError


class DatasetName(StrEnum):
    """The sources of prompts."""

    RANDOM_IDS = "random-ids"
    RANDOM = "random"
    SHARED_PREFIX = "generated-shared-prefix"
    SHAREGPT = "sharegpt"
    TRACE = "trace"


@dataclass(frozen=True)
class Option:
    """The command option of a field: its help, its bounds, and its name if it differs from the field's."""

    help: str
    least: float | None = None
    most: float | None = None
    spelling: str | None = None


@dataclass(frozen=True)
class Workload:
    """The prompts of a load. Lengths are in tokens."""

    dataset_name: Annotated[DatasetName, Option("Source of the prompts.")] = DatasetName.RANDOM_IDS
    dataset_path: Annotated[Path | None, Option("File of prompts for sharegpt (JSON) or trace (JSON lines).")] = None
    num_prompts: Annotated[
        int | None,
        Option("Requests per run. Default: 100, or all prompts of generated-shared-prefix and trace.", least=1),
    ] = None
    random_input_len: Annotated[int, Option("random, random-ids: maximum tokens per prompt.", least=1)] = 1024
    random_output_len: Annotated[int, Option("random, random-ids: maximum tokens per output.", least=1)] = 128
    random_range_ratio: Annotated[
        float,
        Option(
            "random, random-ids: ratio of the minimum to the maximum length, as in SGLang. With 1, all "
            "lengths are equal.",
            least=0,
            most=1,
        ),
    ] = 1.0
    gsp_num_groups: Annotated[int, Option("generated-shared-prefix: number of system prompts.", least=1)] = 4
    gsp_prompts_per_group: Annotated[
        int, Option("generated-shared-prefix: number of questions per system prompt.", least=1)
    ] = 16
    gsp_system_prompt_len: Annotated[int, Option("generated-shared-prefix: tokens per system prompt.", least=1)] = 2048
    gsp_question_len: Annotated[int, Option("generated-shared-prefix: tokens per question.", least=1)] = 128
    gsp_output_len: Annotated[int, Option("generated-shared-prefix: tokens per output.", least=1)] = 256
    sharegpt_output_len: Annotated[
        int | None, Option("sharegpt: tokens per output. Default: the length of the answer in the file.", least=1)
    ] = None
    sharegpt_context_len: Annotated[
        int | None,
        Option("sharegpt: maximum tokens of prompt and output together. Longer conversations are skipped.", least=1),
    ] = None
    trace_slowdown_factor: Annotated[float, Option("trace: factor that the timestamps are multiplied by.", least=0)] = (
        1.0
    )

    def __post_init__(self) -> None:
        from_file = self.dataset_name in (DatasetName.SHAREGPT, DatasetName.TRACE)
        if from_file and self.dataset_path is None:
            raise OperatorError(f"--dataset-name {self.dataset_name} needs a file: name it with --dataset-path")
        if not from_file and self.dataset_path is not None:
            raise OperatorError(f"--dataset-name {self.dataset_name} uses no file: leave out --dataset-path")


@dataclass(frozen=True)
class Traffic:
    """The traffic of a load: the way in which prompts are sent."""

    model: Annotated[str | None, Option("Model name in the API. Default: the only model of the server.")] = None
    max_concurrency: Annotated[
        int | None, Option("Maximum number of concurrent requests. Default: no limit.", least=1)
    ] = None
    seed: Annotated[int, Option("Random seed of prompts and arrivals.", least=0)] = 1
    ignore_eos: Annotated[
        bool,
        Option(
            "Generate exactly the requested number of tokens (ignore_eos).",
            spelling="--ignore-eos/--disable-ignore-eos",
        ),
    ] = True
    warmup_requests: Annotated[int, Option("Warm-up requests before the first run. They are not counted.", least=0)] = 1
    flush_cache: Annotated[bool, Option("Send POST /flush_cache before each run.", spelling="--flush-cache")] = False
    tokenizer: Annotated[
        Path | None,
        Option("Folder or .gguf file of the tokenizer that counts tokens of text. Default: the server's /tokenize."),
    ] = None
    vocab_size: Annotated[
        int | None, Option("Upper limit of random token ids (exclusive). Default: 30000.", least=2)
    ] = None
    timeout_s: Annotated[
        float, Option("Seconds after which a request counts as failed. 0 sets no limit.", least=0, spelling="--timeout")
    ] = 3600.0
    api_key: str | None = None
    ca_file: Path | None = None
    extra_body: dict[str, Any] = field(default_factory=dict)  # added to each request


def default_rate(workload: Workload) -> float | None:
    """Return the rate that sends all requests at once; None for a trace, whose timestamps apply."""
    return None if workload.dataset_name is DatasetName.TRACE else math.inf


def parse_rates(given: list[str]) -> list[float]:
    """Return the rates in requests per second, in the given order.

    A value may be a list with commas; ``inf`` sends all requests at once. Raises `OperatorError` for a value that is no
    positive number.
    """
    rates = []
    for word in ",".join(given).replace(",", " ").split():
        try:
            rate = float(word)
        except ValueError:
            rate = math.nan
        if not rate > 0:
            raise OperatorError(
                f"--request-rate {word} is not valid: use a number of requests per second above 0, or inf"
            )
        rates.append(rate)
    return rates
