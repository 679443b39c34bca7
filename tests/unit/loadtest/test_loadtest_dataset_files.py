"""ShareGPT files and traces."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numaserve.server.loadtest.options import DatasetName, Workload
from numaserve.server.loadtest.workload.dataset import make_requests
from numaserve.server.loadtest.workload.load import arrivals_of
from numaserve.server.loadtest.workload.prompts import TokenFiller
from numaserve.server.loadtest.workload.requests import BenchRequest
from numaserve.workers.interface.errors import OperatorError


async def count_words(text: str) -> int:
    return len(text.split())


def conversation(question: str, answer: str) -> dict[str, Any]:
    return {"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}


def read(name: DatasetName, path: Path, seed: int = 1, **options: Any) -> list[BenchRequest]:
    workload = Workload(name, path, **options)
    return asyncio.run(make_requests(workload, TokenFiller(), count_words, seed))


def sharegpt(path: Path, *entries: object, seed: int = 1, **options: Any) -> list[BenchRequest]:
    file = path / "sharegpt.json"
    file.write_text(json.dumps(entries))
    return read(DatasetName.SHAREGPT, file, seed, **options)


def trace(path: Path, *lines: object, **options: Any) -> list[BenchRequest]:
    file = path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return read(DatasetName.TRACE, file, **options)


def test_the_first_question_is_asked_for_as_many_tokens_as_its_answer_has(tmp_path: Path) -> None:
    assert sharegpt(tmp_path, conversation("what is this", "it is a test")) == [BenchRequest("what is this", 3, 4)]


def test_the_length_of_answers_can_be_given(tmp_path: Path) -> None:
    (request,) = sharegpt(tmp_path, conversation("what is this", "no"), sharegpt_output_len=9)
    assert request.output_tokens == 9


def test_what_is_no_question_with_an_answer_is_left_out(tmp_path: Path) -> None:
    useless = [{}, {"conversations": "x"}, conversation("short", "it is a test"), conversation("what is this", "no")]
    useless.append({"conversations": [{"value": "a question alone"}]})
    (request,) = sharegpt(tmp_path, *useless, conversation("good question", "good answer"))
    assert request.prompt == "good question"


def test_what_does_not_fit_the_context_is_left_out(tmp_path: Path) -> None:
    entries = [conversation("one two three", "four five six"), conversation("one two", "three four")]
    assert [each.input_tokens for each in sharegpt(tmp_path, *entries, sharegpt_context_len=5)] == [2]


def test_conversations_are_drawn_by_the_seed_and_none_twice(tmp_path: Path) -> None:
    entries = [conversation(f"question {i}", "an answer") for i in range(50)]
    drawn = [each.prompt for each in sharegpt(tmp_path, *entries, num_prompts=20)]
    assert len(set(map(str, drawn))) == 20
    assert drawn == [each.prompt for each in sharegpt(tmp_path, *entries, num_prompts=20)]
    assert drawn != [each.prompt for each in sharegpt(tmp_path, *entries, num_prompts=20, seed=2)]


def test_timestamps_of_a_trace_count_from_the_first_and_can_be_stretched(tmp_path: Path) -> None:
    lines = [{"timestamp": at, "input_length": 3, "output_length": 1} for at in (5500, 4000, 4250)]
    requests = trace(tmp_path, *lines, trace_slowdown_factor=2.0)
    arrivals = arrivals_of(requests, None, np.random.default_rng(0))
    assert arrivals == [0.0, 0.5, 3.0]


def test_a_rate_overrules_the_timestamps(tmp_path: Path) -> None:
    requests = trace(tmp_path, *({"timestamp": at, "input_length": 3, "output_length": 1} for at in (0, 9000)))
    assert arrivals_of(requests, float("inf"), np.random.default_rng(0)) == [0.0, 0.0]


def test_a_trace_without_timestamps_comes_all_at_once(tmp_path: Path) -> None:
    requests = trace(tmp_path, {"input_length": 3, "output_length": 1}, {"input_length": 4, "output_length": 1})
    assert arrivals_of(requests, None, np.random.default_rng(0)) == [0.0, 0.0]


def test_equal_hashes_give_equal_blocks_and_lengths_are_exact(tmp_path: Path) -> None:
    first, second, third = trace(
        tmp_path,
        {"input_length": 1100, "output_length": 2, "hash_ids": [7, 8, 9]},
        {"input_length": 1300, "output_length": 2, "hash_ids": [7, 8, 10]},
        {"input_length": 600, "output_length": 2, "hash_ids": [11, 8]},
    )
    assert [len(each.prompt) for each in (first, second, third)] == [1100, 1300, 600]
    assert first.prompt[:1024] == second.prompt[:1024]
    assert first.prompt[1024] != second.prompt[1024]
    assert first.prompt[:512] != third.prompt[:512]


def test_lines_without_hashes_share_nothing(tmp_path: Path) -> None:
    first, second = trace(tmp_path, *({"input_length": 50, "output_length": 1} for _ in range(2)))
    assert first.prompt != second.prompt


def test_prompts_of_a_trace_are_sent_as_they_are(tmp_path: Path) -> None:
    text, tokens = {"prompt": "to be or", "output_length": 3}, {"prompt": [4, 5], "output_length": 2}
    assert trace(tmp_path, text, tokens) == [BenchRequest("to be or", 3, 3), BenchRequest([4, 5], 2, 2)]


def test_num_prompts_takes_the_beginning_of_a_trace(tmp_path: Path) -> None:
    lines = [{"input_length": length, "output_length": 1} for length in (1, 2, 3)]
    assert [each.input_tokens for each in trace(tmp_path, *lines, num_prompts=2)] == [1, 2]


@pytest.mark.parametrize(
    "line",
    [
        {"input_length": 3},
        {"input_length": 3, "output_length": 0},
        {"output_length": 3},
        {"input_length": -1, "output_length": 3},
        {"input_length": 3, "output_length": 3, "hash_ids": [-1]},
        [],
    ],
)
def test_a_useless_line_is_named(tmp_path: Path, line: object) -> None:
    with pytest.raises(OperatorError, match=r"trace\.jsonl, line 2: "):
        trace(tmp_path, {"input_length": 3, "output_length": 1}, line)


def test_a_file_without_usable_prompts_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="has no usable prompt"):
        sharegpt(tmp_path, {})
    with pytest.raises(OperatorError, match="has no usable prompt"):
        trace(tmp_path)


def test_a_file_that_is_no_sharegpt_file_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(OperatorError, match="is not a ShareGPT file"):
        read(DatasetName.SHAREGPT, tmp_path / "x.json")


def test_a_missing_file_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"cannot read --dataset-path .*: No such file"):
        read(DatasetName.TRACE, tmp_path / "none")


@pytest.mark.parametrize(("name", "path"), [(DatasetName.TRACE, None), (DatasetName.RANDOM, Path("x"))])
def test_a_file_is_named_where_one_is_read(name: DatasetName, path: Path | None) -> None:
    with pytest.raises(OperatorError, match="--dataset-path"):
        Workload(name, path)
