"""The draft model as the operator's options name it."""

from pathlib import Path

import pytest
from numaserve.server.config import load_config
from numaserve.server.service.deployment import deployment_options
from numaserve.workers.errors import OperatorError

from tests.support.same_bits import save_tiny_model


@pytest.mark.parametrize(("name", "kept"), [("llama", "int8"), ("deepseek_v3", "bf16")])
def test_its_keys_and_values_are_kept_as_the_model_s_unless_they_are_latents(
    name: str, kept: str, tmp_path: Path
) -> None:
    save_tiny_model(name, tmp_path)
    config = load_config({"model": "demo", "draft_model": str(tmp_path), "kv_cache_dtype": "int8"})
    draft = deployment_options(config, Path("model")).draft
    assert draft is not None
    assert draft.settings.kv_cache_dtype == kept


def test_one_that_is_not_there_is_told_and_one_that_does_not_guess_is_not_looked_for(tmp_path: Path) -> None:
    missing = {"model": "demo", "draft_model": str(tmp_path / "none")}
    with pytest.raises(OperatorError, match="none: there is no such file or folder"):
        deployment_options(load_config(missing), Path("model"))
    assert deployment_options(load_config(missing | {"speculative": "suffix"}), Path("model")).draft is None
