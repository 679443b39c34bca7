"""Advice where a model does not fit the machine's memory."""

import re
from dataclasses import replace

import pytest
from msgspec import structs
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, settings_of
from numaserve.workers.layers.stored import Stored
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.deployment import make_deployment
from numaserve.workers.planning.narrower import narrower_settings
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.topology import Topology

from tests.support.configured import configured
from tests.support.machines import GIB, OPTIONS, machine

LARGE = configured(
    hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8, head_dim=128,
    intermediate_size=28672, max_position_embeddings=131072,
)  # fmt: skip
WEIGHT_OPTIONS = {"quantize_lm_head": False, "activation_dtype": "auto"}
OTHERS = {"kv_cache_dtype": "bf16", "expert_parallel": False, "context_parallel_from": None}


def complaint(options: DeploymentOptions, on: Topology, model: ModelConfig = LARGE) -> str:
    with pytest.raises(OperatorError) as caught:
        make_deployment(options, model, on)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def quantized(options: DeploymentOptions, name: str) -> DeploymentOptions:
    """The options with `--quantization NAME`, as the command line makes them."""
    return replace(options, settings=settings_of({"quantization": name, **WEIGHT_OPTIONS, **OTHERS}))


@pytest.mark.parametrize(
    ("options", "on", "name"),
    [
        (OPTIONS, machine(8, free_gib=64), "int4"),
        (OPTIONS, machine(8, free_gib=120), "int8"),
        (OPTIONS, machine(8, 8, free_gib=500, cgroup_gib=64), "int4"),
        (replace(OPTIONS, memory_bytes=100 * GIB), machine(8, 8, free_gib=500), "int8"),
        (replace(OPTIONS, context_length=131072), machine(8, 8, free_gib=96), "int8"),
        (quantized(OPTIONS, "int8"), machine(8, free_gib=64), "int4"),
    ],
)
def test_the_widest_quantization_that_fits_is_proposed(options: DeploymentOptions, on: Topology, name: str) -> None:
    proposed = re.search(
        r"GiB more is needed: set --quantization (\w+) \(fits with a context of (\d+) tokens\)", complaint(options, on)
    )
    assert proposed is not None
    assert proposed[1] == name
    assert make_deployment(quantized(options, name), LARGE, on).capacity.context_length == int(proposed[2])
    if name == "int4":
        complaint(quantized(options, "int8"), on)


def test_what_the_narrowest_weights_lack_is_said_where_none_fit() -> None:
    said = complaint(OPTIONS, machine(8, free_gib=16))
    found = re.search(
        r"; ([\d.]+) GiB more is needed, or ([\d.]+) GiB more with --quantization int4: free memory of node 0", said
    )
    assert found is not None
    fraction = OPTIONS.mem_fraction_static
    for options, missing in ((OPTIONS, found[1]), (quantized(OPTIONS, "int4"), found[2])):
        # Missing for anything at all; a useful context takes more.
        enough = 16 + (float(missing) + 1) / fraction
        assert make_deployment(options, LARGE, machine(8, free_gib=enough)).capacity.num_pages > 0
        complaint(options, machine(8, free_gib=16 + (float(missing) - 0.1) / fraction))


def test_a_checkpoint_that_cannot_be_quantized_gets_no_such_advice() -> None:
    stored = {"layers.0.mlp.down_proj": Stored("gptq", "int4", 128, bits=4)}
    said = complaint(OPTIONS, machine(8, free_gib=64), replace(LARGE, stored=stored))
    assert "--quantization" not in said
    assert said.endswith("free memory of node 0, raise --mem-fraction-static or use a smaller model")


def test_idle_nodes_are_a_remedy_and_the_pool_that_lacks_most_is_named() -> None:
    assert "set --tp 2 to use all NUMA nodes" in complaint(replace(OPTIONS, tp=1), machine(8, 8, free_gib=60))
    assert "--tp" not in complaint(OPTIONS, machine(8, 8, free_gib=60))
    assert "on node 1: weights" in complaint(replace(OPTIONS, tp=2), machine(2, 8, free_gib=60))


def test_a_kv_cache_of_a_given_size_is_none_that_narrower_weights_would_help() -> None:
    assert "--quantization" not in complaint(replace(OPTIONS, kv_cache_gib=0.1), machine(8, 8, free_gib=500))


def test_narrower_settings_are_what_the_option_makes() -> None:
    assert dict(narrower_settings(DEFAULT_SETTINGS)) == {
        name: quantized(OPTIONS, name).settings for name in ("int8", "int4")
    }
    with_head = settings_of({"quantization": "int8", **WEIGHT_OPTIONS, **OTHERS, "quantize_lm_head": True})
    ((name, settings),) = narrower_settings(with_head)
    assert (name, settings.formats.linear, settings.formats.lm_head) == ("int4", "int4", "int4")
    narrowest = structs.replace(with_head, formats=settings.formats)
    assert list(narrower_settings(narrowest)) == []
