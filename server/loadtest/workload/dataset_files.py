"""The workloads that are read from files. Nothing is downloaded."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numaserve.server.loadtest.options import Workload
from numaserve.server.loadtest.workload.prompts import CountTokens, Filler, Piece
from numaserve.server.loadtest.workload.requests import BenchRequest, Prompt
from numaserve.workers.interface.errors import OperatorError

TRACE_BLOCK = 512  # tokens per entry of `hash_ids`, as in Mooncake's traces
_SHORTEST = 2  # minimum tokens of a prompt or an answer of a conversation, as in SGLang


_Natural = Annotated[int, msgspec.Meta(ge=0)]


class _TraceLine(msgspec.Struct):
    """A line of a trace. `timestamp` is in milliseconds. Equal leading `hash_ids` mean equal prompt prefixes."""

    output_length: _Natural
    timestamp: float | None = None
    prompt: str | list[_Natural] | None = None
    input_length: _Natural = 0
    hash_ids: list[_Natural] = []


async def read_sharegpt(
    workload: Workload, limit: int, count_tokens: CountTokens, rng: np.random.Generator
) -> list[BenchRequest]:
    """Return the first questions of up to `limit` conversations, drawn without repetition, with answer lengths."""
    path = _path_of(workload)
    try:
        entries = msgspec.json.decode(_read(path), type=list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise OperatorError(f"{path} is not a ShareGPT file (a JSON list of conversations): {error}") from None
    requests: list[BenchRequest] = []
    for index in rng.permutation(len(entries)):
        turns = _turns(entries[index])
        if len(turns) < 2:
            continue
        prompt, answer = turns[:2]
        inputs = await count_tokens(prompt)
        outputs = workload.sharegpt_output_len or await count_tokens(answer)
        too_long = workload.sharegpt_context_len is not None and inputs + outputs > workload.sharegpt_context_len
        if min(inputs, outputs) < _SHORTEST or too_long:
            continue
        requests.append(BenchRequest(prompt, inputs, outputs))
        if len(requests) == limit:
            break
    return requests


def _turns(entry: dict[str, Any]) -> list[str]:
    turns = entry.get("conversations", entry.get("conversation", []))
    values = [turn.get("value") for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    return [value for value in values if isinstance(value, str)]


async def read_trace(
    workload: Workload, filler: Filler[Piece], count_tokens: CountTokens, seed: int
) -> list[BenchRequest]:
    """Return the requests of the first `num_prompts` lines, by default all, in the order of their timestamps."""
    path = _path_of(workload)
    lines = [line for line in _read(path).splitlines() if line.strip()]
    trace = [_trace_line(path, number, line) for number, line in enumerate(lines[: workload.num_prompts], 1)]
    trace.sort(key=lambda line: line.timestamp or 0.0)
    begin = trace[0].timestamp or 0.0 if trace else 0.0
    requests = []
    for number, line in enumerate(trace):
        prompt, length = await _trace_prompt(line, filler, count_tokens, (seed, number))
        arrival = None if line.timestamp is None else (line.timestamp - begin) / 1e3 * workload.trace_slowdown_factor
        requests.append(BenchRequest(prompt, length, line.output_length, arrival))
    return requests


def _trace_line(path: Path, number: int, text: bytes) -> _TraceLine:
    try:
        line = msgspec.json.decode(text, type=_TraceLine)
    except msgspec.DecodeError as error:
        raise OperatorError(f"{path}, line {number}: {error}") from None
    if line.output_length < 1 or (not line.prompt and line.input_length < 1):
        raise OperatorError(f"{path}, line {number}: the line needs output_length and either prompt or input_length")
    return line


async def _trace_prompt(
    line: _TraceLine, filler: Filler[Piece], count_tokens: CountTokens, key: tuple[int, int]
) -> tuple[Prompt, int]:
    """Return the prompt and its length. Blocks depend only on seed and hash, so that equal hashes give equal tokens."""
    if line.prompt:
        return line.prompt, await count_tokens(line.prompt) if isinstance(line.prompt, str) else len(line.prompt)
    seed, number = key
    hashes = line.hash_ids[: -(-line.input_length // TRACE_BLOCK)]
    pieces: list[Piece] = []
    for each in hashes[:-1]:
        pieces += await filler.fill(TRACE_BLOCK, np.random.default_rng([seed, 0, each]))
    last = np.random.default_rng([seed, 0, hashes[-1]] if hashes else [seed, 1, number])
    return filler.prompt(await filler.fill(line.input_length, last, pieces)), line.input_length


def _path_of(workload: Workload) -> Path:
    assert workload.dataset_path is not None  # noqa: S101  (Workload requires it)
    return workload.dataset_path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OperatorError(f"cannot read --dataset-path {path}: {error.strerror}") from None
