"""The latency limits of MLPerf's tasks belong to models by their sizes."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from numaserve.configs import mlperf
from numaserve.workers.bench.mlperf import MlperfTask, task_of, tasks
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.load import load_model_config

from tests.support.full_shapes import DEEPSEEK_R1, LLAMA_70B, QWEN3_235B


def task_for(folder: Path, config: dict[str, Any], name: str | None = None) -> MlperfTask:
    (folder / "config.json").write_text(json.dumps(config))
    return task_of(load_model_config(folder), name)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (DEEPSEEK_R1, ("deepseek-r1", 2000, 80)),
        (LLAMA_70B, ("llama2-70b", 2000, 200)),
        (QWEN3_235B, ("llama3.1-8b", 2000, 100)),
    ],
    ids=["its own task", "the task of its size", "no task"],
)
def test_a_model_has_the_first_task_of_its_sizes(
    tmp_path: Path, config: dict[str, Any], expected: tuple[str, float, float]
) -> None:
    task = task_for(tmp_path, config)
    assert (task.name, task.ttft_ms, task.tpot_ms) == expected


def test_a_name_selects_a_task(tmp_path: Path) -> None:
    task = task_for(tmp_path, DEEPSEEK_R1, "llama2-70b-interactive")
    assert (task.ttft_ms, task.tpot_ms) == (450, 40)
    with pytest.raises(OperatorError, match=r"--mlperf-task gptj is not a known task: use one of llama3\.1-8b, "):
        task_for(tmp_path, DEEPSEEK_R1, "gptj")


def test_a_name_is_of_one_task_and_its_source_is_stated() -> None:
    assert set(Counter(task.name for task in tasks()).values()) == {1}
    assert {task.source for task in tasks()} == set(yaml.safe_load(mlperf().read_text())["sources"])
