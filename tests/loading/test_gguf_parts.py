"""GGUF files in several parts, as large models are published."""

import re
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.config.gguf_parts import gguf_paths
from numaserve.workers.models.load import load_model_config
from numaserve.workers.weights.cache.key import look_at

from tests.support import checkpoints
from tests.support.gguf_files import finish
from tests.support.loaded import load_part


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "whole.gguf"
    return checkpoints.save_gguf(checkpoints.random_model("qwen3_moe"), path, "Q4_0", expanded=False)


def divide(whole: Path, path: Path, tensors: int) -> list[Path]:
    """The parts of a copy with that many tensors each, as llama-gguf-split makes them."""
    reader = gguf.GGUFReader(whole)
    groups = [reader.tensors[start : start + tensors] for start in range(0, len(reader.tensors), tensors)]
    written = []
    for no, group in enumerate(groups):
        part = path.with_name(f"{path.stem}-{no + 1:05}-of-{len(groups):05}.gguf")
        writer = gguf.GGUFWriter(part, "qwen3moe" if no == 0 else "")
        if no == 0:
            for field in reader.fields.values():
                if not field.name.startswith(("GGUF.", "general.architecture")):
                    writer.add_key_value(field.name, field.contents(), field.types[0], *field.types[1:2])
        writer.add_uint16("split.no", no)
        writer.add_uint16("split.count", len(groups))
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in group:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        finish(writer)
        written.append(part)
    return written


@pytest.mark.parametrize("tensors", [1, 7])
def test_parts_are_the_model_that_they_were_cut_from(tensors: int, whole: Path, tmp_path: Path, team: Team) -> None:
    first, *others = divide(whole, tmp_path / "parts.gguf", tensors)
    assert gguf_paths(first) == [first, *others]
    assert load_model_config(first) == load_model_config(whole)
    for rank in range(2):
        found, expected = (load_part(path, team, [2, 1], rank) for path in (first, whole))
        assert [bytes(each.buffer()) for each in found.all_matrices] == [
            bytes(each.buffer()) for each in expected.all_matrices
        ]


def test_a_name_of_more_parts_than_any_model_has_is_the_name_of_one_file() -> None:
    assert len(gguf_paths(Path("model-00001-of-01024.gguf"))) == 1024
    path = Path("model-00001-of-01025.gguf")
    assert gguf_paths(path) == [path]


def test_a_change_of_any_part_is_noticed(whole: Path, tmp_path: Path) -> None:
    first, *others = divide(whole, tmp_path / "parts.gguf", 10)
    before = look_at(first)
    others[-1].write_bytes(others[-1].read_bytes())
    assert look_at(first) != before


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda parts: parts[1].unlink(), r"00002-of-.*: missing; put all \d+ parts"),
        (
            lambda parts: parts[1].write_bytes(parts[2].read_bytes()),
            r"00002-of-.*: not part 2 of \d+, although its "
            "name says so",
        ),
        (lambda parts: parts[1].write_bytes(parts[1].read_bytes()[:-9]), r"00002-of-.*: not a valid GGUF file"),
        (
            lambda parts: parts[0].rename(parts[0].with_name("model.gguf")),
            r"one of \d+ parts of a model; give the first part",
        ),
    ],
)
def test_parts_that_do_not_belong_together_are_one_clear_line(
    spoil: Callable[[list[Path]], object], message: str, whole: Path, tmp_path: Path
) -> None:
    parts = divide(whole, tmp_path / "parts.gguf", 10)
    spoil(parts)
    path = next(each for each in (parts[0], tmp_path / "model.gguf") if each.exists())
    with pytest.raises(OperatorError, match=message) as error:
        load_model_config(path)
    assert "\n" not in str(error.value)


def test_another_than_the_first_part_is_refused(whole: Path, tmp_path: Path) -> None:
    parts = divide(whole, tmp_path / "parts.gguf", 10)
    with pytest.raises(OperatorError, match=re.escape(f"one of {len(parts)} parts of a model; give the first part")):
        load_model_config(parts[1])
