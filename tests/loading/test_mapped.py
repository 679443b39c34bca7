"""What was packed is not kept in memory a second time, as pages of the checkpoint's file."""

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numaserve.kernels import Team
from numaserve.workers import mapped
from numaserve.workers.mapped import MappedFile, ReadFiles
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.weights import loader
from numaserve.workers.weights.checkpoint import open_source
from numaserve.workers.weights.source import RawTensor

from tests.support import checkpoints
from tests.support.published_checkpoints import save_published, small_llama, small_qwen2_moe

SIZE = 1 << 20


def resident(path: Path) -> int:
    """Bytes of the file in this process's memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    found = 0
    for line in lines:
        if line.endswith(str(path)):
            found += next(int(each.split()[1]) << 10 for each in lines if each.startswith("Rss:"))
    return found


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in "ab"]


@pytest.fixture
def files(paths: list[Path]) -> list[MappedFile]:
    """Two files, all of which was read."""
    found = []
    for path in paths:
        path.write_bytes(np.arange(SIZE // 4, dtype=np.uint32).tobytes())
        with path.open("rb") as file:
            found.append(MappedFile(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        assert found[-1].data.sum() > 0
    return found


def test_a_file_that_is_released_takes_no_memory_and_can_be_read_again(
    paths: list[Path], files: list[MappedFile]
) -> None:
    assert [resident(path) for path in paths] == [SIZE, SIZE]
    files[0].release()
    assert [resident(path) for path in paths] == [0, SIZE]
    np.testing.assert_array_equal(files[0].data, files[1].data)


def test_files_are_released_once_enough_of_them_was_read(
    paths: list[Path], files: list[MappedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "RELEASE_BYTES", 1000)
    read = ReadFiles()
    read.add(files[0], 400)
    read.add(files[1], 599)
    assert [resident(path) for path in paths] == [SIZE, SIZE]
    read.add(files[0], 1)
    assert [resident(path) for path in paths] == [0, 0]
    assert sum(int(file.data.sum()) for file in files) > 0
    read.add(files[0], 1000)
    assert [resident(path) for path in paths] == [0, SIZE]


@pytest.mark.parametrize(
    "save",
    [
        lambda folder: checkpoints.save(small_llama(), folder),
        lambda folder: save_published(small_llama(), folder, "gptq"),
        lambda folder: save_published(small_qwen2_moe(), folder, "fp8 blocks"),
        lambda folder: checkpoints.save_gguf(small_llama(), folder / "model.gguf", "Q8_0"),
        lambda folder: checkpoints.save_gguf(small_llama(), folder / "model.gguf", "Q5_0", expanded=False),
    ],
    ids=["bf16", "gptq", "fp8", "q8_0", "q5_0"],
)
def test_every_tensor_of_a_matrix_is_released_after_it_was_packed(
    save: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path)
    config = load_model_config(path)
    source = open_source(open_model(path), config)
    released: set[str] = set()
    monkeypatch.setattr(type(source), "release", lambda _, tensor: released.add(tensor.name))
    allowed = os.sched_getaffinity(0)
    team = Team([min(allowed)])
    os.sched_setaffinity(0, allowed)  # see test_loader.py
    loader.load_weights(source, config, config.partition([1]).ranks[0], team, lambda _: None, positions=64)
    tensors: list[RawTensor] = [source.part(name) for name in source.names()]
    assert {tensor.name for tensor in tensors if len(tensor.shape) == 2} <= released
