import gc
import itertools
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from numaserve.kernels import Team
from numaserve.workers.interface.protocol import WeightsCache
from numaserve.workers.interface.settings import AS_PUBLISHED, BF16_WEIGHTS, ModelSettings, WeightFormats
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.weights.cache import key as key_module
from numaserve.workers.weights.cache.background import BackgroundWriter
from numaserve.workers.weights.cache.errors import CacheError
from numaserve.workers.weights.cache.loading import LoadedWeights, RankLoader

from tests.support import checkpoints
from tests.support.damage import write_at
from tests.support.published import LAYOUTS
from tests.support.published_checkpoints import save_published, small_llama, small_qwen2_moe

SHARES = [2, 1]
LOAD_IN_ANOTHER_PROCESS = """
import sys
from pathlib import Path
from numaserve.kernels import Team
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.interface.protocol import WeightsCache
from numaserve.workers.interface.settings import AS_PUBLISHED
from numaserve.workers.weights.cache.loading import RankLoader
path, cache = Path(sys.argv[1]), WeightsCache(sys.argv[2], 1 << 30)
config = load_model_config(path)
loader = RankLoader(open_model(path), config, config.partition([2, 1]).ranks[1], 64, cache)
print(loader.load(Team([-1]), lambda _: None).origin)
"""
# A layout of each format: the cache has the packed weights alone. All others are in the slow set.
_OF_FORMATS = {layout.native: name for name, layout in reversed(LAYOUTS.items())}.values()
EACH_FORMAT = [pytest.param(name, marks=[pytest.mark.slow] * (name not in _OF_FORMATS)) for name in LAYOUTS]
FORMATS = [BF16_WEIGHTS, WeightFormats("int8", "int8")]


@pytest.fixture(scope="module")
def team() -> Team:
    return Team([-1, -1])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.save(checkpoints.random_model("qwen2"), tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_module, "SETTLED_S", -1e9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "packed"


def loader(
    model: Path, folder: Path | None, rank: int = 0, formats: WeightFormats = BF16_WEIGHTS, limit: int = 1 << 30
) -> RankLoader:
    cache = None if folder is None else WeightsCache(str(folder), limit)
    config = load_model_config(model)
    part = config.partition(SHARES, ModelSettings(formats=formats)).ranks[rank]
    return RankLoader(open_model(model), config, part, 64, cache)


def load(which: RankLoader, team: Team) -> LoadedWeights:
    done: list[int] = []
    loaded = which.load(team, done.append)
    assert done[-1] == loaded.nbytes == which.part.weight_bytes()
    return loaded


def load_and_save(which: RankLoader, team: Team) -> LoadedWeights:
    loaded = load(which, team)
    assert loaded.origin == "checkpoint"
    assert loaded.save is not None
    loaded.save(lambda: None)
    return loaded


def contents(loaded: LoadedWeights) -> list[bytes]:
    return [bytes(matrix.buffer()) for matrix in loaded.weights.matrices]


@pytest.mark.parametrize("formats", FORMATS)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_second_start_has_the_bytes_of_the_first(
    rank: int, formats: WeightFormats, model: Path, folder: Path, team: Team
) -> None:
    first = load_and_save(loader(model, folder, rank, formats), team)
    second = load(loader(model, folder, rank, formats), team)
    assert (second.origin, second.save) == ("cache", None)
    assert contents(second) == contents(first)


def test_a_gguf_file_is_cached_too(tmp_path: Path, folder: Path, team: Team) -> None:
    path = checkpoints.save_gguf(checkpoints.random_model("llama-tied"), tmp_path / "model.gguf", "Q8_0")
    first = load_and_save(loader(path, folder), team)
    second = load(loader(path, folder), team)
    assert second.origin == "cache"
    assert contents(second) == contents(first)


@pytest.mark.parametrize("layout", EACH_FORMAT)
def test_a_quantized_checkpoint_is_cached_as_it_is_kept(layout: str, tmp_path: Path, folder: Path, team: Team) -> None:
    path = save_published(small_llama(), tmp_path / "model", layout)
    first = load_and_save(loader(path, folder, 1, AS_PUBLISHED), team)
    second = load(loader(path, folder, 1, AS_PUBLISHED), team)
    assert second.origin == "cache"
    assert contents(second) == contents(first)
    assert load(loader(path, folder, 1), team).origin == "checkpoint"


@pytest.mark.parametrize("layout", ["awq", "w8a8", "fp8 blocks"])
def test_experts_are_cached(layout: str, tmp_path: Path, folder: Path, team: Team) -> None:
    path = save_published(small_qwen2_moe(), tmp_path / "model", layout)
    first = load_and_save(loader(path, folder, 1, AS_PUBLISHED), team)
    second = load(loader(path, folder, 1, AS_PUBLISHED), team)
    assert second.origin == "cache"
    assert contents(second) == contents(first)


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_loaded_weights_that_are_to_be_cached_leave_the_checkpoint_closed(
    kind: str, tmp_path: Path, folder: Path, team: Team
) -> None:
    checkpoint = checkpoints.random_model("llama-tied")
    if kind == "gguf":
        path = checkpoints.save_gguf(checkpoint, tmp_path / "model.gguf", "Q8_0")
    else:
        path = checkpoints.save(checkpoint, tmp_path / "model")
    loaded = load(loader(path, folder), team)
    gc.collect()
    assert loaded.save is not None
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_other_processes_find_the_same_weights(tmp_path: Path, folder: Path, team: Team) -> None:
    path = save_published(small_llama(), tmp_path / "model", "awq")
    load_and_save(loader(path, folder, 1, AS_PUBLISHED), team)
    for seed in ("1", "2"):
        command = [sys.executable, "-c", LOAD_IN_ANOTHER_PROCESS, str(path), str(folder)]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert (done.stdout, done.stderr) == ("cache\n", "")


def test_ranks_and_formats_do_not_get_each_others_weights(model: Path, folder: Path, team: Team) -> None:
    load_and_save(loader(model, folder), team)
    assert load(loader(model, folder, 1), team).origin == "checkpoint"
    assert load(loader(model, folder, 0, FORMATS[1]), team).origin == "checkpoint"


def test_without_a_cache_nothing_is_kept(model: Path, team: Team) -> None:
    loaded = load(loader(model, None), team)
    assert (loaded.origin, loaded.save) == ("checkpoint", None)


def test_a_checkpoint_that_changes_is_packed_again(tmp_path: Path, folder: Path, team: Team) -> None:
    path = checkpoints.save(checkpoints.random_model("llama-tied"), tmp_path / "model")
    load_and_save(loader(path, folder), team)
    os.utime(path / "model.safetensors")
    assert load(loader(path, folder), team).origin == "checkpoint"


def test_weights_of_a_checkpoint_that_changes_meanwhile_are_not_kept(tmp_path: Path, folder: Path, team: Team) -> None:
    path = checkpoints.save(checkpoints.random_model("llama-tied"), tmp_path / "model")
    loaded = load(loader(path, folder), team)
    assert loaded.save is not None
    os.utime(path / "model.safetensors")
    with pytest.raises(CacheError, match="has changed since"):
        loaded.save(lambda: None)
    (path / "model.safetensors").unlink()
    with pytest.raises(CacheError, match="has changed since"):
        loaded.save(lambda: None)
    assert list(folder.iterdir()) == []


def test_weights_of_a_checkpoint_that_was_just_changed_are_not_kept_yet(
    tmp_path: Path, folder: Path, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_module, "SETTLED_S", 1e9)
    path = checkpoints.save(checkpoints.random_model("llama-tied"), tmp_path / "model")
    assert load(loader(path, folder), team).save is None


@pytest.mark.parametrize("damage", ["flipped", "cut", "linked", "open"])
def test_a_damaged_file_costs_a_warning_and_is_replaced(
    damage: str, model: Path, folder: Path, team: Team, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = load_and_save(loader(model, folder), team)
    (file,) = folder.iterdir()
    match damage:
        case "flipped":
            write_at(file, file.stat().st_size // 2, b"\xa5\xa5\xa5")
        case "cut":
            os.truncate(file, file.stat().st_size // 2)
        case "linked":
            file.rename(tmp_path / "elsewhere")
            file.symlink_to(tmp_path / "elsewhere")
        case "open":
            file.chmod(0o666)
    with caplog.at_level(logging.WARNING):
        second = load_and_save(loader(model, folder), team)
    assert file.name in caplog.text
    assert "packing the weights and caching them again" in caplog.text
    assert contents(second) == contents(first)
    third = load(loader(model, folder), team)
    assert third.origin == "cache"
    assert contents(third) == contents(first)


def test_a_folder_that_cannot_be_used_costs_a_warning_only(
    model: Path, tmp_path: Path, team: Team, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        loaded = load(loader(model, tmp_path / "file" / "packed"), team)
    assert (loaded.origin, loaded.save) == ("checkpoint", None)
    assert "not cached" in caplog.text


def test_room_is_made_for_all_ranks_or_none(model: Path, folder: Path, team: Team) -> None:
    config = load_model_config(model)
    both = sum(part.weight_bytes() for part in config.partition(SHARES).ranks)
    loaded = load(loader(model, folder, limit=both - 1), team)
    assert loaded.save is not None
    with pytest.raises(CacheError, match="raise --weights-cache-gib"):
        loaded.save(lambda: None)
    assert load(loader(model, folder, limit=both), team).save is not None


def test_weights_are_written_in_the_background(model: Path, folder: Path, team: Team) -> None:
    loaded = load(loader(model, folder), team)
    assert loaded.save is not None
    writer = BackgroundWriter(loaded.save, lambda: 0, [-1])
    writer.wait()
    writer.stop()
    assert load(loader(model, folder), team).origin == "cache"


@pytest.mark.parametrize("steps", [lambda: 0, itertools.count().__next__], ids=["idle", "busy"])
def test_a_writer_that_is_stopped_leaves_nothing(
    steps: Callable[[], int], model: Path, folder: Path, team: Team
) -> None:
    save, begun = load(loader(model, folder), team).save, threading.Event()
    assert save is not None

    def write(between: Callable[[], None]) -> int:
        def for_ever() -> None:
            begun.set()
            while True:
                between()

        return save(for_ever)

    writer = BackgroundWriter(write, steps, [])
    assert begun.wait(60)
    assert len(list(folder.iterdir())) == 1
    writer.stop()
    assert list(folder.iterdir()) == []


def test_what_goes_wrong_in_the_background_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def write(_: object) -> int:
        raise CacheError("the disk is full")

    with caplog.at_level(logging.WARNING):
        BackgroundWriter(write, lambda: 0, []).wait()
    assert "the packed weights were not cached: the disk is full" in caplog.text


def test_a_checkpoint_that_is_too_new_to_be_cached_is_no_reason_to_warn(
    model: Path, folder: Path, team: Team, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(key_module, "SETTLED_S", 1e9)
    caplog.set_level(logging.INFO)
    assert [load(loader(model, folder, rank), team).save for rank in (0, 1)] == [None, None]
    assert [(record.levelno, record.args) for record in caplog.records] == [(logging.INFO, (2.0,))]
    assert "the next start caches them" in caplog.text
