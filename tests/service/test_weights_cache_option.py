from pathlib import Path

import pytest
from numaserve.server.config.serve import load_config
from numaserve.server.service.model.deployment import deployment_options
from numaserve.workers.interface.protocol import WeightsCache


def cache_of(**options: object) -> WeightsCache | None:
    return deployment_options(load_config({"model": "demo", **options}), Path("model"), None).weights_cache


def test_packed_weights_are_kept_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_of() == WeightsCache(str(tmp_path / "x/numaserve/packed"), 64 << 30)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for ignored in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_of(weights_cache_gib=0.5) == WeightsCache(str(tmp_path / "home/.cache/numaserve/packed"), 1 << 29)
    assert not list(tmp_path.iterdir())


def test_no_space_means_no_cache_and_so_does_the_reference() -> None:
    assert cache_of(weights_cache_gib=0) is None
    assert cache_of(backend="reference") is None
