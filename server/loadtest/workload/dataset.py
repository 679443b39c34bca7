"""The requests of a workload. The same seed gives the same requests for every server."""

import numpy as np
from numaserve.server.loadtest.options import DatasetName, Workload
from numaserve.server.loadtest.workload.dataset_files import read_sharegpt, read_trace
from numaserve.server.loadtest.workload.prompts import CountTokens, Filler, Piece
from numaserve.server.loadtest.workload.requests import BenchRequest
from numaserve.workers.interface.errors import OperatorError

DEFAULT_PROMPTS = 100


async def make_requests(
    workload: Workload, filler: Filler[Piece], count_tokens: CountTokens, seed: int
) -> list[BenchRequest]:
    """Return at most `num_prompts` requests. Raises `OperatorError` for an unusable file."""
    rng = np.random.default_rng(seed)
    match workload.dataset_name:
        case DatasetName.RANDOM_IDS | DatasetName.RANDOM:
            return await _random(workload, filler, rng)
        case DatasetName.SHARED_PREFIX:
            return await _shared_prefix(workload, filler, rng)
        case DatasetName.SHAREGPT:
            limit = workload.num_prompts or DEFAULT_PROMPTS
            requests = await read_sharegpt(workload, limit, count_tokens, rng)
        case DatasetName.TRACE:
            requests = await read_trace(workload, filler, count_tokens, seed)
    if not requests:
        raise OperatorError(
            f"{workload.dataset_path} has no usable prompt: check that the file has the format of --dataset-name "
            f"{workload.dataset_name}"
        )
    return requests


async def _random(workload: Workload, filler: Filler[Piece], rng: np.random.Generator) -> list[BenchRequest]:
    count = workload.num_prompts or DEFAULT_PROMPTS
    inputs = _lengths(workload.random_input_len, workload.random_range_ratio, count, rng)
    outputs = _lengths(workload.random_output_len, workload.random_range_ratio, count, rng)
    return [BenchRequest(filler.prompt(await filler.fill(inputs[i], rng)), inputs[i], outputs[i]) for i in range(count)]


def _lengths(longest: int, ratio: float, count: int, rng: np.random.Generator) -> list[int]:
    """Return lengths drawn uniformly between `ratio` * `longest` and `longest`, both included, as SGLang does."""
    lengths: list[int] = rng.integers(max(1, int(longest * ratio)), longest + 1, size=count).tolist()
    return lengths


async def _shared_prefix(workload: Workload, filler: Filler[Piece], rng: np.random.Generator) -> list[BenchRequest]:
    """Return groups of questions, each group after its own system prompt, shuffled."""
    total = workload.gsp_system_prompt_len + workload.gsp_question_len
    requests = []
    for _ in range(workload.gsp_num_groups):
        prefix = await filler.fill(workload.gsp_system_prompt_len, rng)
        for _ in range(workload.gsp_prompts_per_group):
            prompt = filler.prompt(await filler.fill(total, rng, prefix))
            requests.append(BenchRequest(prompt, total, workload.gsp_output_len))
    order = rng.permutation(len(requests))
    return [requests[i] for i in order][: workload.num_prompts]
