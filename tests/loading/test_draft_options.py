"""The draft model as the operator's options name it."""

from pathlib import Path

import pytest
from numaserve.server.config.serve import load_config
from numaserve.server.service.model.deployment import deployment_options
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.load import load_model_config
from numaserve.workers.planning.deployment import make_deployment

from tests.support import gemma4
from tests.support.machines import machine
from tests.support.predicting import save_predicting
from tests.support.same_bits import save_tiny_model, tiny_model


@pytest.mark.parametrize(("name", "kept"), [("llama", "int8"), ("deepseek_v3", "bf16")])
def test_its_keys_and_values_are_kept_as_the_model_s_unless_they_are_latents(
    name: str, kept: str, tmp_path: Path
) -> None:
    save_tiny_model(name, tmp_path)
    config = load_config({"model": "demo", "draft_model": str(tmp_path), "kv_cache_dtype": "int8"})
    draft = deployment_options(config, Path("model"), None).draft
    assert draft is not None
    assert draft.settings.kv_cache_dtype == kept


def test_one_that_is_not_there_is_told_and_one_that_does_not_draft_is_not_looked_for(tmp_path: Path) -> None:
    missing = {"model": "demo", "draft_model": str(tmp_path / "none")}
    with pytest.raises(OperatorError, match="none: no such file or folder"):
        deployment_options(load_config(missing), Path("model"), None)
    assert deployment_options(load_config(missing | {"speculative": "suffix"}), Path("model"), None).draft is None


def test_an_assistant_is_a_drafter_of_its_own(tmp_path: Path) -> None:
    plain = save_tiny_model("llama", tmp_path / "plain")
    assistant = gemma4.save_assistant(tiny_model("gemma4").config, tmp_path / "assistant")
    for path, drafter in ((plain, "draft_model"), (assistant, "assistant")):
        config = load_config({"model": "demo", "draft_model": str(path)})
        assert deployment_options(config, Path("model"), None).drafter == drafter


def test_a_layer_that_predicts_is_loaded_where_it_is_named_or_meant_and_there(tmp_path: Path) -> None:
    plain, predicting = (
        save_tiny_model("llama", tmp_path / "plain"),
        save_predicting("glm4_moe", tmp_path / "predicting"),
    )

    def loaded(path: Path, **options: object) -> bool:
        return deployment_options(load_config({"model": "demo", **options}), path, None).settings.mtp

    assert loaded(predicting, speculative="auto")
    assert loaded(predicting, speculative="mtp")
    assert not loaded(predicting)
    assert not loaded(predicting, speculative="suffix")
    assert not loaded(predicting, speculative="auto", draft_model=str(plain))
    assert not loaded(plain, speculative="auto")
    assert loaded(plain, speculative="mtp")  # which is refused when the model is looked at


@pytest.mark.parametrize("tp", [1, 2])
def test_the_memory_of_a_layer_that_predicts_is_planned(tp: int, tmp_path: Path) -> None:
    path, plans = save_predicting("deepseek_v3", tmp_path), []
    for speculative in ("off", "auto"):
        options = deployment_options(load_config({"model": "demo", "tp": tp, "speculative": speculative}), path, None)
        plans.append(make_deployment(options, load_model_config(path, options.settings), machine(2)))
    without, with_it = (plan.ranks[0] for plan in plans)
    assert with_it.weight_bytes > without.weight_bytes
    assert with_it.scratch_bytes > without.scratch_bytes
    # Three layers of latents instead of two, and the hidden state of a page's last token.
    latents = without.kv_bytes // plans[0].capacity.num_pages // 2
    assert with_it.kv_bytes // plans[1].capacity.num_pages == 3 * latents + 2 * 96
    assert plans[1].ring_slot_bytes >= plans[0].ring_slot_bytes
