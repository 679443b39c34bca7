"""The server in a sandbox as containers have it, where the kernel places memory by itself."""

from pathlib import Path

import pytest

from tests.support import refuse_numa
from tests.support.chat_model import write_model
from tests.support.real_server import RealServer

OPTIONS = ("--tp", "2", "--kv-cache-gib", "0.1")


def answer(server: RealServer) -> object:
    found = server.complete("The capital of France is", 12, logprobs=3)
    assert found.status_code == 200, found.text
    return found.json()["choices"]


def test_a_server_that_may_not_bind_memory_says_so_once_and_answers_with_the_same_bits(tmp_path: Path) -> None:
    model = str(write_model(tmp_path))
    with RealServer(*OPTIONS, model=model) as free:
        free_answer, free_metrics, free_log = answer(free), free.metrics(), free.log.read_text()
    with RealServer(*OPTIONS, model=model, program=(str(Path(refuse_numa.__file__)),)) as refused:
        assert answer(refused) == free_answer
        metrics, log = refused.metrics(), refused.log.read_text()
    assert [metrics[f"worker_memory_bound {rank}"] for rank in (0, 1)] == [0, 0]
    assert [metrics[f"worker_misplaced_pages {rank}"] for rank in (0, 1)] == [0, 0]
    assert log.count("memory is not bound to NUMA nodes") == 1
    assert "set_mempolicy: Operation not permitted" in log
    if free_metrics["worker_memory_bound 0"] == 0:
        pytest.skip("the kernel binds no memory here in any case")
    assert "memory is not bound" not in free_log
