"""The report of the start, as a person reads it and as a record."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from numaserve.server.adapters.adapters import Adapters
from numaserve.server.config.serve import load_config
from numaserve.server.http.access_log import JsonFormatter
from numaserve.server.service.assembly import Checked
from numaserve.server.service.hosts import StageHost
from numaserve.server.service.model.deployment import deployment_options
from numaserve.server.service.process.logs import TextFormatter
from numaserve.server.service.start_report import log_start
from numaserve.server.supervisor.agent_wire import AgentAddress
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.host_links import Address, KeyPair
from numaserve.workers.interface.windows import Window
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.deployment import make_deployment
from numaserve.workers.planning.topology import Topology

from tests.support import checkpoints, vision
from tests.support.adapters import FakeRanks, make_adapters
from tests.support.configured import configured, recurrent
from tests.support.machines import machine

GIB = 1 << 30


def record_of(
    caplog: pytest.LogCaptureFixture,
    on: Topology,
    model: ModelConfig,
    isa: str | None = "avx512",
    adapters: Adapters | None = None,
    hosts: Sequence[StageHost | None] = (),
    **options: Any,
) -> logging.LogRecord:
    """The one record of a server of `model` with these options on a machine, or on the hosts of its stages."""
    config = load_config({"model": "m", **options})
    machines = [on if each is None else each.topology for each in hosts]
    deployment = make_deployment(deployment_options(config, Path("m"), isa), model, on, machines)
    parts: dict[str, Any] = {"config": config, "deployment": deployment, "machine": on, "instruction_set": isa}
    parts |= {"images": model.images, "adapters": adapters, "hosts": hosts}
    rest: dict[str, Any] = dict.fromkeys((*Checked.__dataclass_fields__.keys() - parts.keys(),))
    caplog.set_level(logging.INFO)
    log_start(Checked(**parts, **rest | {"path": Path("m"), "key_sources": SimpleNamespace()}))
    (record,) = caplog.records
    return record


def test_a_terminal_shows_nodes_ranks_cores_formats_and_sizes(caplog: pytest.LogCaptureFixture) -> None:
    record = record_of(caplog, machine(4, 4, 2), configured(), tp=2, kv_cache_gib=1.0, speculative=["suffix"])
    first, *lines = TextFormatter().format(record).splitlines()
    assert first.endswith("INFO serving m")
    rows = {line[2:13].strip(): line[15:] for line in lines}
    assert rows["machine"] == "2 of 3 nodes, 2 ranks on 8 of 10 cores, avx512"
    assert rows["node 0"].startswith("rank 0 on cores 0-3: weights 1")
    assert rows["node 1"].startswith("rank 1 on cores 4-7: weights ")
    assert rows["weights"] == "261 MiB in bf16"  # both ranks have one of the three KV heads
    assert rows["context"] == "8192 tokens, at most 64 sequences at a time"
    assert rows["KV cache"].endswith(" tokens, 1024 MiB in bf16")
    assert rows["speculation"] == "suffix"


def test_nodes_of_other_hosts_are_named_with_their_agents(caplog: pytest.LogCaptureFixture) -> None:
    agent = AgentAddress(Address("10.0.0.2", 7000), "", KeyPair("", ""))
    hosts = [None, StageHost(agent, Path("m"), machine(6))]
    record = record_of(caplog, machine(4), configured(), hosts=hosts, tp=1, pp=2, kv_cache_gib=1.0)
    _, *lines = TextFormatter().format(record).splitlines()
    rows = dict(line[2:].split("  ", 1) for line in lines)
    assert rows["machine"].strip() == "2 hosts, 2 of 2 nodes, 2 ranks on 10 of 10 cores, avx512"
    assert "rank 0 on cores 0-3: " in rows["node 0"]
    assert "rank 1 on cores 0-5: " in rows["10.0.0.2:7000 node 0"]
    told = json.loads(JsonFormatter().format(record))
    assert [each.get("host") for each in told["ranks"]] == [None, "10.0.0.2:7000"]
    assert told["usable_cores"] == 10


def test_hosts_with_other_numbers_of_nodes_need_a_number_of_ranks() -> None:
    options = deployment_options(load_config({"model": "m", "pp": 2}), Path("m"), "avx512")
    with pytest.raises(OperatorError, match=r"would have 1, 2 ranks.* set --tp"):
        make_deployment(options, configured(), machine(4), [machine(4), machine(4, 4)])


def test_quantized_weights_are_named_with_what_they_are_multiplied_by(caplog: pytest.LogCaptureFixture) -> None:
    record = record_of(caplog, machine(4), configured(), quantization="int4", activation_dtype="int8")
    assert "\n  weights      " in TextFormatter().format(record)
    assert " in int4, bf16 (int4 times int8 activations)\n" in TextFormatter().format(record)


def test_ranks_that_share_a_node_have_one_line(caplog: pytest.LogCaptureFixture) -> None:
    record = record_of(caplog, machine(4), configured(), tp=4)
    assert "\n  node 0       ranks 0-3 on cores 0-3: weights " in TextFormatter().format(record)
    assert "\n  speculation  off" in TextFormatter().format(record)


def test_a_json_log_has_one_record_with_a_field_for_each_figure(caplog: pytest.LogCaptureFixture) -> None:
    record = record_of(caplog, machine(4, 4), configured(), kv_cache_gib=1.0, kv_cache_dtype="int8")
    line = JsonFormatter().format(record)
    assert len(line.splitlines()) == 1
    fields = json.loads(line)
    assert [(each["rank"], each["node"], each["cores"]) for each in fields["ranks"]] == [(0, 0, "0-3"), (1, 1, "4-7")]
    assert (fields["usable_nodes"], fields["usable_cores"], fields["cores"]) == (2, 8, 8)
    assert fields["instruction_set"] == "avx512"
    assert fields["weight_formats"] == ["bf16"]
    assert fields["weight_bytes"] == sum(each["weight_bytes"] for each in fields["ranks"]) > 200 << 20
    assert GIB - (1 << 20) < fields["kv_cache_bytes"] <= GIB
    # 30 layers, 2 heads on each rank, keys and values of 64 codes and a scale.
    assert 0.9 * GIB < fields["kv_cache_tokens"] * 30 * 4 * 2 * 64 <= GIB
    assert (fields["kv_cache_dtype"], fields["context_length"], fields["speculative"]) == ("int8", 8192, "off")


def test_recurrent_states_have_a_line_and_fields_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    record = record_of(caplog, machine(4, free_gib=10), recurrent(max_position_embeddings=131072), state_cache_gib=1.0)
    rows = {line[2:13].strip(): line[15:] for line in TextFormatter().format(record).splitlines()}
    assert rows["states"] == "16 running and 20 cached, 1.8 GiB"
    assert rows["context"] == "131072 tokens, at most 16 sequences at a time"
    assert rows["node 0"].endswith(", states 1.8 GiB")
    fields = json.loads(JsonFormatter().format(record))
    assert (fields["max_running_requests"], fields["cached_states"]) == (16, 20)
    assert fields["state_bytes"] == fields["ranks"][0]["state_bytes"] == pytest.approx(36 * 50.2 * 2**20, rel=2e-3)


def test_windows_have_a_line_and_a_field_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    model = configured("MistralForCausalLM", sliding_window=512)
    record = record_of(caplog, machine(4), model, max_running_requests=4)
    ((window, tokens),) = json.loads(JsonFormatter().format(record))["window_tokens"].items()
    assert window == "512"
    assert tokens >= 32 * Window(512).least_pages(4, 512)
    assert f"\n  window       {tokens} tokens in layers with a window of 512\n" in TextFormatter().format(record)


def test_the_backend_without_kernels_has_no_instruction_set(caplog: pytest.LogCaptureFixture) -> None:
    record = record_of(caplog, machine(4), configured(), None, backend="reference")
    assert "1 rank on 4 of 4 cores, torch" in TextFormatter().format(record)
    assert json.loads(JsonFormatter().format(record))["instruction_set"] is None


def test_images_have_rows_only_where_the_model_reads_some(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    model = load_model_config(vision.save(checkpoints.build(vision.CASES["idefics3"]()), tmp_path))
    record = record_of(caplog, machine(4), model, max_images=3, image_memory_gib=0.25)
    rows = {line[2:13].strip(): line[15:] for line in TextFormatter().format(record).splitlines()[1:]}
    assert rows["images"] == "at most 3 in a request, each of up to 17 tiles of 128 x 128 pixels and 4 tokens"
    assert rows["image store"].startswith("256 MiB for 5461 tiles, besides 0 MiB for features and ")
    assert ", images 25" in rows["node 0"]
    fields = json.loads(JsonFormatter().format(record))["images"]
    assert (fields["store_tiles"], fields["feature_tiles"], fields["pixel_bytes"]) == (5461, 64, GIB // 4)
    caplog.clear()
    text = record_of(caplog, machine(4), model.text_only())
    assert "images" not in TextFormatter().format(text)
    assert "images" not in json.loads(JsonFormatter().format(text))


def test_adapters_are_named_with_the_number_that_has_memory(caplog: pytest.LogCaptureFixture) -> None:
    adapters = make_adapters(4, FakeRanks(), start=["sql", "law"])
    record = record_of(caplog, machine(4), configured(), adapters=adapters)
    assert "\n  adapters     sql, law; memory for 4" in TextFormatter().format(record)
    assert json.loads(JsonFormatter().format(record))["loras"] == ["sql", "law"]
