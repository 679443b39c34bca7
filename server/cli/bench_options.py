"""Options that the commands of ``numaserve bench`` share, named as in SGLang's and vLLM's clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer
from numaserve.server.cli.shared_options import with_options
from numaserve.server.loadtest.options import DatasetName, Traffic, Workload
from numaserve.server.service.key_sources import client_key
from numaserve.workers.errors import OperatorError

Model = Annotated[str | None, typer.Option(help="Name in the API. Default: the only one that is served.")]
ApiKeyFile = Annotated[Path | None, typer.Option(help="File whose first key is sent.")]

Dataset = Annotated[DatasetName, typer.Option("--dataset-name", help="Where prompts come from.")]
DatasetPath = Annotated[Path | None, typer.Option(help="The file of sharegpt (JSON) or trace (JSON lines).")]
NumPrompts = Annotated[
    int | None, typer.Option(min=1, help="Requests of a run. Default: 100; every one of groups and traces.")
]
RandomInputLen = Annotated[int, typer.Option(min=1, help="random, random-ids: tokens of the longest prompt.")]
RandomOutputLen = Annotated[int, typer.Option(min=1, help="random, random-ids: tokens of the longest answer.")]
RandomRangeRatio = Annotated[
    float, typer.Option(min=0, max=1, help="random, random-ids: shortest over longest, as SGLang has it; 1 is exact.")
]
GspNumGroups = Annotated[int, typer.Option(min=1, help="generated-shared-prefix: system prompts.")]
GspPromptsPerGroup = Annotated[int, typer.Option(min=1, help="generated-shared-prefix: questions to each.")]
GspSystemPromptLen = Annotated[int, typer.Option(min=1, help="generated-shared-prefix: tokens of a system prompt.")]
GspQuestionLen = Annotated[int, typer.Option(min=1, help="generated-shared-prefix: tokens of a question.")]
GspOutputLen = Annotated[int, typer.Option(min=1, help="generated-shared-prefix: tokens of an answer.")]
SharegptOutputLen = Annotated[
    int | None, typer.Option(min=1, help="sharegpt: tokens of an answer. Default: those of the answer in the file.")
]
SharegptContextLen = Annotated[
    int | None, typer.Option(min=1, help="sharegpt: leave out what is longer, prompt and answer together.")
]
TraceSlowdownFactor = Annotated[float, typer.Option(min=0, help="trace: stretch its timestamps by this.")]

MaxConcurrency = Annotated[int | None, typer.Option(min=1, help="Requests in flight at most. Default: no limit.")]
Seed = Annotated[int, typer.Option(min=0, help="Of prompts and arrivals.")]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos/--disable-ignore-eos", help="Generate as many tokens as are asked for.")
]
WarmupRequests = Annotated[int, typer.Option(min=0, help="Requests before the first run, which are not counted.")]
FlushCache = Annotated[bool, typer.Option("--flush-cache", help="POST /flush_cache before each run.")]
ExtraRequestBody = Annotated[str, typer.Option(help="JSON object to add to each request.")]
Tokenizer = Annotated[
    Path | None,
    typer.Option(help="Folder or .gguf file to count tokens of text with. Default: the server's /tokenize."),
]
VocabSize = Annotated[int | None, typer.Option(min=2, help="Random token ids are below this. Default: 30000.")]
Timeout = Annotated[float, typer.Option(min=0, help="Seconds after which a request has failed; 0: never.")]

OutputFile = Annotated[Path | None, typer.Option(help="Append a JSON line for each run.")]
EfficienciesFile = Annotated[
    Path | None,
    typer.Option("--efficiencies", help="What `numaserve bench kernels --json` wrote. Default: the shipped figures."),
]
Json = Annotated[Path | None, typer.Option("--json", help="Append a JSON line for each row.")]
OutputDetails = Annotated[bool, typer.Option("--output-details", help="With every request in the JSON lines.")]


def takes_load(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of prompts and traffic, which it takes as `workload` and `traffic`.

    The command then raises `OperatorError` for a file or JSON that is no use.
    """
    shared = signature(_load_options, eval_str=True).parameters.values()
    return with_options(command, shared, {"workload": _workload_of, "traffic": _traffic_of})


def _load_options(
    *,
    model: Model = None,
    api_key_file: ApiKeyFile = None,
    dataset_name: Dataset = Workload.dataset_name,
    dataset_path: DatasetPath = None,
    num_prompts: NumPrompts = None,
    random_input_len: RandomInputLen = Workload.random_input_len,
    random_output_len: RandomOutputLen = Workload.random_output_len,
    random_range_ratio: RandomRangeRatio = Workload.random_range_ratio,
    gsp_num_groups: GspNumGroups = Workload.gsp_num_groups,
    gsp_prompts_per_group: GspPromptsPerGroup = Workload.gsp_prompts_per_group,
    gsp_system_prompt_len: GspSystemPromptLen = Workload.gsp_system_prompt_len,
    gsp_question_len: GspQuestionLen = Workload.gsp_question_len,
    gsp_output_len: GspOutputLen = Workload.gsp_output_len,
    sharegpt_output_len: SharegptOutputLen = None,
    sharegpt_context_len: SharegptContextLen = None,
    trace_slowdown_factor: TraceSlowdownFactor = Workload.trace_slowdown_factor,
    max_concurrency: MaxConcurrency = None,
    seed: Seed = Traffic.seed,
    ignore_eos: IgnoreEos = Traffic.ignore_eos,
    warmup_requests: WarmupRequests = Traffic.warmup_requests,
    flush_cache: FlushCache = Traffic.flush_cache,
    extra_request_body: ExtraRequestBody = "{}",
    tokenizer: Tokenizer = None,
    vocab_size: VocabSize = None,
    timeout: Timeout = Traffic.timeout_s,
) -> None:
    """Declares the options: their names, types and defaults."""


def _workload_of(options: dict[str, Any]) -> Workload:
    """The prompts that a command's options ask for."""
    return Workload(**{name: options[name] for name in Workload.__dataclass_fields__})


def _traffic_of(options: dict[str, Any]) -> Traffic:
    """The traffic that a command's options ask for. Raises `OperatorError` for a file or JSON that is no use."""
    return Traffic(
        model=options["model"],
        max_concurrency=options["max_concurrency"],
        seed=options["seed"],
        ignore_eos=options["ignore_eos"],
        warmup_requests=options["warmup_requests"],
        flush_cache=options["flush_cache"],
        api_key=client_key(options["api_key_file"]),
        extra_body=_json_object(options["extra_request_body"]),
        tokenizer=options["tokenizer"],
        vocab_size=options["vocab_size"],
        timeout_s=options["timeout"],
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise OperatorError(f"--extra-request-body is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise OperatorError('--extra-request-body: expected a JSON object like {"temperature": 0.7}')
    return value
