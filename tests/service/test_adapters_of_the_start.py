"""The adapters that a server begins with, as its options name them."""

from pathlib import Path
from typing import Any

import pytest
from numaserve.server.config.serve import load_config
from numaserve.server.service.model import adapters as adapters_module
from numaserve.server.service.model.adapters import find_adapters
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.spec import ModelConfig

from tests.support.adapters import Described, describe
from tests.support.configured import configured


@pytest.fixture(autouse=True)
def _unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def described(path: Path, config: ModelConfig, settings: ModelSettings) -> Described:
        assert settings.max_lora_rank == 8
        return describe(path)

    monkeypatch.setattr(adapters_module, "describe_adapter", described)


def found(**options: Any) -> Any:
    config = load_config({"model": "m", **options})
    return find_adapters(config, ["m"], configured(), ModelSettings(max_lora_rank=8))


def test_adapters_are_in_their_places_before_the_workers_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found() is None
    monkeypatch.setenv("HOME", "/x")
    adapters = found(lora=["sql=~/one", "law=/x/two"], max_loras=3, lora_root=tmp_path)
    assert adapters.num_places == 3
    assert [(each.number, each.path) for each in adapters.at_launch()] == [(1, "/x/one"), (2, "/x/two")]
    assert [each.load_id for each in adapters.loaded.values()] == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora": ["sql=/x/bad"]}, "--lora sql: bad: 'q_proj' has rank 99"),
        ({"lora": ["m=/x"]}, "--lora m: 'm' is a name of the served model. Choose another name"),
        ({"lora_root": "/"}, "--lora-root has no effect without memory for adapters: set --max-loras"),
        ({"lora_root": "/none", "max_loras": 1}, "--lora-root /none is not a folder: name the folder"),
    ],
)
def test_a_mistake_is_told_before_a_weight_is_read(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError) as refused:
        found(**options)
    assert message in str(refused.value)
