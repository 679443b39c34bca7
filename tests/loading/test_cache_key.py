import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from numaserve.kernels import build
from numaserve.workers.interface.settings import BF16_WEIGHTS, ModelSettings, WeightFormats
from numaserve.workers.layers.stored import Stored
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.weights.cache import key as key_module
from numaserve.workers.weights.cache.folder import CacheKey
from numaserve.workers.weights.cache.key import cache_key, look_at

from tests.support.configured import configured
from tests.support.damage import write_at

SMALL = configured(
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=128,
    vocab_size=100,
    max_position_embeddings=128,
)
SETTINGS = ModelSettings(formats=BF16_WEIGHTS)
INT8, FP8 = Stored("int8", "int8"), Stored("fp8", "fp8", 128, block_rows=128)
CONTENT = b"\x08\0\0\0\0\0\0\0{}      " + bytes(1 << 20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"hidden_size": 64}))
    for part in ("a", "b"):
        (path / f"{part}.safetensors").write_bytes(CONTENT)
    (path / "README.md").write_text("about")
    return path


def key_of(path: Path, **changes: object) -> CacheKey:
    values: dict[str, Any] = {"config": SMALL, "shares": [4, 3], "rank": 0, "settings": SETTINGS} | changes
    config: ModelConfig = values["config"]
    return cache_key(
        look_at(path), config, config.partition(values["shares"], values["settings"]).ranks[values["rank"]]
    )


def edit_in_place(path: Path, at: int) -> None:
    """As somebody does who wants it unnoticed: same size, same time of modification."""
    before = path.stat()
    time.sleep(0.02)  # a tick of the file system's clock
    write_at(path, at, b"\1")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def exchange(folder: Path) -> None:
    first, second = folder / "a.safetensors", folder / "b.safetensors"
    first.rename(folder / "c.safetensors")
    second.rename(first)
    (folder / "c.safetensors").rename(second)


def replace_by_a_copy(path: Path) -> None:
    shutil.copy2(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)


def test_a_key_stays_while_nothing_changes(folder: Path) -> None:
    before = key_of(folder)
    (folder / "README.md").write_text("more about")
    os.utime(folder)
    assert key_of(folder) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "config.json").write_text(json.dumps({"hidden_size": 65})),
        lambda folder: (folder / "a.safetensors").write_bytes(CONTENT + b"\0"),
        lambda folder: (folder / "a.safetensors").write_bytes(CONTENT),
        lambda folder: os.utime(folder / "a.safetensors"),
        lambda folder: edit_in_place(folder / "a.safetensors", 100),
        lambda folder: edit_in_place(folder / "a.safetensors", 1 << 20),
        lambda folder: replace_by_a_copy(folder / "b.safetensors"),
        lambda folder: (folder / "b.safetensors").unlink(),
        lambda folder: (folder / "b.safetensors").rename(folder / "c.safetensors"),
        lambda folder: (folder / "c.safetensors").write_bytes(b""),
        lambda folder: (folder / "quantize_config.json").write_text("{}"),
        lambda folder: (folder / "sparse_linear.pt").write_bytes(CONTENT),
        exchange,
    ],
)
def test_a_key_changes_with_anything_of_the_checkpoint(change: Callable[[Path], object], folder: Path) -> None:
    before = key_of(folder)
    change(folder)
    assert key_of(folder).group != before.group


@pytest.mark.parametrize(
    "changes",
    [
        {"shares": [3, 4]},
        {"shares": [4, 3, 1]},
        {"shares": [43]},
        {"settings": ModelSettings(formats=WeightFormats("int8", "bf16"))},
        {"settings": ModelSettings(formats=WeightFormats("int8", "int8"))},
        {"settings": ModelSettings(formats=structs.replace(BF16_WEIGHTS, int8_activations=("int4",)))},
        {"settings": ModelSettings(formats=BF16_WEIGHTS, expert_parallel=True)},
        {"config": replace(SMALL, decoder=replace(SMALL.decoder, head=replace(SMALL.decoder.head, tied=False)))},
        {"config": replace(SMALL, family="qwen3")},
        {"config": replace(SMALL, decoder=replace(SMALL.decoder, norm=replace(SMALL.decoder.norm, plus_one=True)))},
        {"config": replace(SMALL, decoder=replace(SMALL.decoder, blocks=SMALL.decoder.blocks[:1]))},
        {"config": replace(SMALL, stored={"layers.0.mlp.up_proj": INT8})},
    ],
)
def test_a_key_changes_with_what_is_made_of_the_checkpoint(changes: dict[str, object], folder: Path) -> None:
    assert key_of(folder, **changes).group != key_of(folder).group


@pytest.mark.parametrize("change", [{"kv_cache_dtype": "int8"}, {"context_parallel_from": 100}])
def test_a_key_stays_with_settings_that_show_in_no_packed_byte(change: dict[str, object], folder: Path) -> None:
    assert key_of(folder, settings=structs.replace(SETTINGS, **change)) == key_of(folder)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": INT8, "b": INT8}, {"a": INT8}),
        ({"a": INT8, "b": FP8}, {"a": FP8, "b": INT8}),
        ({"a": INT8}, {"a": replace(INT8, symmetric=False)}),
        ({"a": INT8, "b": INT8}, {"a', 'b": INT8}),
    ],
)
def test_a_key_changes_with_how_a_module_is_stored(
    first: dict[str, Stored], second: dict[str, Stored], folder: Path
) -> None:
    keys = [key_of(folder, config=replace(SMALL, stored=stored)) for stored in (first, second)]
    assert keys[0] != keys[1]


def test_the_order_of_modules_does_not_count(folder: Path) -> None:
    stored = {"a": INT8, "b": FP8, "c": INT8}
    backwards = dict(reversed(stored.items()))
    assert key_of(folder, config=replace(SMALL, stored=stored)) == key_of(
        folder, config=replace(SMALL, stored=backwards)
    )


def test_ranks_have_files_of_their_own_in_one_group(folder: Path) -> None:
    keys = [key_of(folder, rank=rank) for rank in range(2)]
    assert keys[0].group == keys[1].group
    assert [key.file_name.partition(".")[2] for key in keys] == ["0of2", "1of2"]


def test_folders_of_the_checkpoint_count_if_they_are_named(folder: Path) -> None:
    (folder / "2_Dense").mkdir()
    alone, below = look_at(folder), look_at(folder, ["2_Dense"])
    (folder / "2_Dense" / "model.safetensors").write_bytes(b"a")
    assert look_at(folder).digest == alone.digest
    assert look_at(folder, ["2_Dense"]).digest != below.digest


@pytest.mark.parametrize("name", ["isa", "code_digest"])
def test_a_key_changes_with_the_instruction_set_and_with_the_code(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key_of(folder)
    monkeypatch.setattr(key_module, name, lambda: b"another")
    assert key_of(folder).group != before.group


def test_code_is_known_by_its_own_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = key_module.code_digest.__wrapped__
    before = digest()
    assert digest() == before
    copy = tmp_path / "weights"
    shutil.copytree(key_module.numaserve.workers.weights.__path__[0], copy)
    monkeypatch.setattr(key_module.numaserve.workers.weights, "__path__", [str(copy)])
    assert digest() == before
    with (copy / "quantized" / "awq.py").open("a") as source:
        source.write("\n")
    edited = digest()
    assert edited != before
    native = tmp_path / "native.so"
    native.write_bytes(Path(build._native.__file__).read_bytes() + b"\0")
    monkeypatch.setattr(build._native, "__file__", str(native))
    assert digest() not in {before, edited}


def test_a_checkpoint_that_was_just_changed_is_not_settled(folder: Path) -> None:
    checkpoint = look_at(folder)
    assert not checkpoint.is_settled(checkpoint.changed_ns)
    assert not checkpoint.is_settled(checkpoint.changed_ns + 2_000_000_000)
    assert checkpoint.is_settled(checkpoint.changed_ns + 2_000_000_001)


def test_a_checkpoint_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"none\.gguf"):
        look_at(tmp_path / "none.gguf")
