"""Models placed on machines that are only described."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from numaserve.server.gateway.models import placement
from numaserve.server.gateway.models.models_file import read_models_file
from numaserve.server.gateway.models.placement import Plan, plan_models
from numaserve.server.service.model import by_model
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.planning.topology import Node, Topology

from tests.support import checkpoints, tiny_model, vision
from tests.support.configured import bidirectional
from tests.support.machines import machine

GIB = 1 << 30
Planned = Callable[..., Plan]


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    model = tiny_model.write_folder(tmp_path / "m")

    def planned(on: Topology, models: Mapping[str, Mapping[str, Any]], **whole: Any) -> Plan:
        file = tmp_path / "models.yaml"
        each = {name: {"model": str(model), "kv_cache_gib": 0.01, **keys} for name, keys in models.items()}
        file.write_text(yaml.safe_dump({"models": each, **whole}))
        return plan_models(read_models_file(file), on, None)

    return planned


def test_a_large_model_and_three_small_ones_share_a_host(planned: Planned) -> None:
    plan = planned(
        machine(8, 8, 8, 8),
        {
            "large": {"nodes": [0, 1, 2], "pinned": True},
            "embedding": {"cores": "24-25", "memory": "2GiB", "pinned": True},
            "reranker": {"cores": "26-28", "memory": "2GiB", "pinned": True},
            "judge": {"cores": "29-31", "memory": "2GiB", "pinned": True},
        },
    )
    ranks = {name: [rank.node for rank in each.deployment.ranks] for name, each in plan.placed.items()}
    assert ranks == {"large": [0, 1, 2], "embedding": [3], "reranker": [3], "judge": [3]}
    assert plan.placed["reranker"].cores == {26, 27, 28}
    cpus = [cpu for each in plan.placed.values() for cpu in each.cpus]
    assert sorted(cpus) == list(range(32))
    assert all(sum(each.memory.values()) <= 2 * GIB for name, each in plan.placed.items() if name != "large")


def test_clients_see_the_name_of_a_folder_and_not_its_path(planned: Planned) -> None:
    assert planned(machine(4), {"a": {}}).placed["a"].own_name == "m"


def test_clients_see_the_limits_of_images_before_a_model_is_loaded(planned: Planned, tmp_path: Path) -> None:
    seeing = vision.save(checkpoints.build(vision.CASES["smolvlm"]()), tmp_path / "seeing")
    models = {"reads": {"nodes": 0}, "sees": {"nodes": 1, "model": str(seeing), "max_images": 3}}
    placed = planned(machine(4, 4), models).placed
    assert placed["reads"].images is None
    images = placed["sees"].images
    assert images is not None
    assert (images.images, images.file_bytes) == (3, 20 << 20)


def test_a_core_is_named_by_its_first_hyperthread_and_a_node_has_both(planned: Planned) -> None:
    on = replace(machine(4), nodes=(Node(0, (0, 1), (2, 3), 64 * GIB, 64 * GIB),))
    assert sorted(planned(on, {"a": {"nodes": 0}}).placed["a"].cpus) == [0, 1, 2, 3]
    assert planned(on, {"a": {"cores": 1}}).placed["a"].cpus == [1]
    with pytest.raises(
        OperatorError,
        match=r"cores: cores 2 are not available to this process\. Available cores: 0-1 ",
    ):
        planned(on, {"a": {"cores": 2}})


@pytest.mark.parametrize(
    ("models", "whole", "message"),
    [
        ({"a": {}, "b": {}}, {}, "'a' and 'b' would both be loaded on cores 0-7, and no core is left for model 'b'"),
        ({"a": {"cores": "0-2"}, "b": {"cores": "2-3"}}, {}, "on cores 2, and model 'b' would fit on cores 3-7"),
        ({"a": {"nodes": 0}, "b": {"nodes": 0}, "c": {"nodes": 1}}, {}, "no core is left for model 'b'"),
        ({"a": {"nodes": 0}, "b": {"nodes": 1}}, {"max-loaded": 1}, "max-loaded is 1, and 2 models are loaded"),
        ({"a": {"pinned": True}, "b": {"load": "request"}}, {}, "'a' and 'b' would both be loaded"),
        (
            {"a": {"nodes": 0, "pinned": True}, "b": {"nodes": 1, "load": "request"}},
            {"max-loaded": 1},
            "max-loaded is 1 and the number of pinned models is 1, so model 'b' could never be loaded: "
            "raise max-loaded to 2 or more",
        ),
        (
            {"a": {"nodes": 2}},
            {},
            "model 'a': nodes: NUMA node 2 is not available to this process. Available nodes: 0, 1",
        ),
        ({"a": {"cores": "7-8"}}, {}, "model 'a': cores: cores 8 are not available to this process"),
        ({"a": {"memory": "100MiB"}}, {}, "model 'a': too little memory within --memory-gib"),
    ],
)
def test_what_cannot_be_loaded_together_is_refused_with_what_would_fit(
    planned: Planned, models: dict[str, Any], whole: dict[str, Any], message: str
) -> None:
    with pytest.raises(OperatorError) as error:
        planned(machine(4, 4), models, **whole)
    assert message in str(error.value)


def test_models_that_are_loaded_together_share_a_cpu_quota(planned: Planned) -> None:
    models = {"a": {"cores": "0-3"}, "b": {"cores": "4-7"}}
    assert planned(machine(8, cpu_quota=8.5), models)
    with pytest.raises(OperatorError, match=r"have 8 cores, and the CPU quota is 6\.5: give the models fewer cores"):
        planned(machine(8, cpu_quota=6.5), models)


def test_models_that_take_each_others_place_may_share_cores(planned: Planned) -> None:
    plan = planned(machine(4, 4), {"a": {}, "b": {"load": "request"}, "c": {"load": "request", "cores": 0}})
    assert plan.placed["a"].cores > plan.placed["c"].cores


def test_models_on_one_node_must_fit_into_its_memory_together(planned: Planned) -> None:
    models = {"a": {"cores": 0}, "b": {"cores": 1}}
    assert planned(machine(4, free_gib=1), models)
    assert planned(machine(4, free_gib=0.6), {"a": models["a"]})
    with pytest.raises(
        OperatorError,
        match=r"on node 0 .* together take 537 MiB \('a' 269 MiB, 'b' 269 MiB\), and 522 MiB are "
        "available",
    ):
        planned(machine(4, free_gib=0.6), models)


def test_a_model_must_fit_beside_the_pinned_ones_whenever_it_is_loaded(planned: Planned) -> None:
    models = {"a": {"cores": 0, "pinned": True}, "b": {"cores": 1, "load": "request"}}
    assert planned(machine(4, free_gib=1), models)
    assert planned(machine(4, free_gib=0.6), {**models, "a": {"cores": 0}})  # which is unloaded to make room
    with pytest.raises(
        OperatorError,
        match=r"on node 0 model 'b' takes 269 MiB, and the pinned models 'a' leave 254 MiB, so the model could",
    ):
        planned(machine(4, free_gib=0.6), models)
    assert planned(machine(4, 4, free_gib=0.6), {**models, "b": {"nodes": 1, "load": "request"}})


def test_models_that_are_all_pinned_may_be_as_many_as_are_loaded_at_once(planned: Planned) -> None:
    models = {"a": {"nodes": 0, "pinned": True}, "b": {"nodes": 1, "pinned": True}}
    assert planned(machine(4, 4), models, **{"max-loaded": 2})


def test_an_encoder_is_placed_for_embeddings(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (by_model, placement):
        monkeypatch.setattr(module, "read_config", lambda _files, _settings: bidirectional(max_position_embeddings=256))
    placed = planned(machine(4), {"a": {}}).placed["a"]
    assert placed.spec.config.served_task == "embed"
    assert placed.deployment.whole_prompts
    assert placed.deployment.launches[0].settings.pooled
    with pytest.raises(OperatorError, match="model 'a': this model is an encoder for the task embed"):
        planned(machine(4), {"a": {"task": "generate"}})
