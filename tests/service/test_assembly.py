from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from httpx import AsyncClient
from numaserve.server.config.serve import ServeConfig, load_config
from numaserve.server.connection.listen import internet_listener
from numaserve.server.engine.config import EngineCallbacks
from numaserve.server.engine.engine import Engine
from numaserve.server.generation.purpose import Embeds, Generates
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.server.service.assembly import Checked, connection_limits, make_engine, make_http_server
from numaserve.server.service.http import HttpServer
from numaserve.server.service.model.deployment import deployment_options
from numaserve.server.service.process.key_sources import KeySources
from numaserve.server.structured.vocabulary import Vocabulary
from numaserve.workers.planning.deployment import Deployment, make_deployment

from tests.support.api_fakes import FakeEngine, make_context
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.configured import bidirectional, configured, recurrent
from tests.support.machines import machine

A_MOMENT = 0.2


def engine_of(config: ServeConfig, deployment: Deployment) -> Engine:
    """An engine that is not started, with what of a checked server it is made of."""
    named = {"name": "some", "tokenizer": ByteTokenizer(), "metrics": Metrics("some"), "vocab_size": 100}
    without: dict[str, Any] = {"drafters": (), "kv_disk": None, "hosts": ()}
    checked: Any = SimpleNamespace(config=config, deployment=deployment, **named, **without)
    return make_engine(checked, EngineCallbacks(), ["true"])


def test_more_requests_than_a_chunk_has_tokens_run_at_once() -> None:
    config = load_config({"model": "demo", "chunked_prefill_size": 16, "max_running_requests": 64})
    deployment = make_deployment(deployment_options(config, Path("model"), None), configured(), machine(4))
    assert engine_of(config, deployment).server_info()["max_running_requests"] == 64


@pytest.mark.parametrize(("given", "most", "first"), [({}, 2048, 512), ({"chunked_prefill_size": 1024}, 1024, 1024)])
def test_steps_may_become_longer_than_the_first_ones_unless_their_size_is_given(
    given: dict[str, int], most: int, first: int
) -> None:
    config = load_config({"model": "demo", **given})
    deployment = make_deployment(deployment_options(config, Path("model"), None), configured(), machine(4))
    info = engine_of(config, deployment).server_info()
    assert (info["chunked_prefill_size"], info["step_tokens"]) == (most, first)


@pytest.mark.parametrize(("given", "runs"), [({}, 16), ({"max_running_requests": 40}, 40)])
def test_states_that_take_much_memory_lower_the_default_of_requests_that_run(given: dict[str, int], runs: int) -> None:
    config = load_config({"model": "demo", **given})
    deployment = make_deployment(deployment_options(config, Path("model"), None), recurrent(), machine(4, free_gib=6))
    assert engine_of(config, deployment).server_info()["max_running_requests"] == runs


def test_the_scheduler_has_the_window_tables_of_the_workers() -> None:
    config = load_config({"model": "demo"})
    model = configured("MistralForCausalLM", sliding_window=512)
    deployment = make_deployment(deployment_options(config, Path("model"), None), model, machine(4))
    (shown,) = engine_of(config, deployment).server_info()["window_tables"]
    assert shown["num_pages"] == deployment.launches[0].capacity.window_pages[0]


def test_scheduler_and_workers_have_the_same_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SchedulerConfig] = []

    def scheduler(config: SchedulerConfig, *others: Any) -> Scheduler:
        made.append(config)
        return Scheduler(config, *others)

    monkeypatch.setattr("numaserve.server.service.assembly.Scheduler", scheduler)
    config = load_config({"model": "demo", "tp": 2, "speculative": ["suffix"]})
    deployment = make_deployment(deployment_options(config, Path("model"), None), recurrent(), machine(2, 2))
    engine_of(config, deployment)
    assert deployment.capacity.num_snapshots > 0 < deployment.capacity.max_drafts
    assert [each.capacity for each in (*made, *deployment.launches)] == [deployment.capacity] * 3


def test_no_states_are_cached_without_a_prefix_cache() -> None:
    config = load_config({"model": "demo", "prefix_cache": False, "state_cache_gib": 1})
    deployment = make_deployment(deployment_options(config, Path("model"), None), recurrent(), machine(4))
    assert deployment.capacity.num_snapshots == 0


def test_the_gateway_s_reader_is_the_one_that_may_be_too_slow() -> None:
    config = load_config({"model": "demo", "keep_alive_seconds": 7})
    link: Any = SimpleNamespace()
    limits = [connection_limits(config, each) for each in (None, link)]
    assert [each.keep_alive_seconds for each in limits] == [7, 7]
    assert (limits[0].write_seconds is None, limits[1].write_seconds) == (False, None)


def test_what_a_constraint_needs_is_loaded_before_there_is_one_unless_there_can_be_none() -> None:
    for purpose in (Generates(), Embeds(8)):
        context = make_context(FakeEngine(), purpose=purpose)
        HttpServer(context, []).prepare()
        assert ("grammars" in vars(context)) == isinstance(purpose, Generates)
        context.close()


def test_a_tokenizer_that_no_grammar_takes_ends_no_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def load(_vocabulary: Vocabulary) -> None:
        raise ValueError("no tokens")

    monkeypatch.setattr(Vocabulary, "load", load)
    context = make_context(FakeEngine())
    HttpServer(context, []).prepare()
    assert caplog.messages == ["this server cannot serve requests with constraints: no tokens"]
    context.close()


def test_a_bidirectional_model_has_its_prompts_packed_into_chunks_and_caches_none() -> None:
    config = load_config({"model": "demo", "task": "embed", "chunked_prefill_size": 256})
    model = bidirectional(max_position_embeddings=8192)
    deployment = make_deployment(deployment_options(config, Path("model"), None), model, machine(4))
    info = engine_of(config, deployment).server_info()
    assert (info["chunked_prefill_size"], info["context_length"]) == (256, 8192)
    assert info["enable_prefix_cache"] is False


@pytest.mark.parametrize("kept_open", [False, True])
async def test_requests_wait_for_the_model_only_at_a_socket_that_is_kept_open(kept_open: bool) -> None:
    config = load_config({"model": "demo"})
    deployment = make_deployment(deployment_options(config, Path("model"), None), configured(), machine(4))
    checked = Checked(
        config,
        None,
        machine(4),
        deployment,
        Path("model"),
        ByteTokenizer(),
        vocab_size=100,
        images=None,
        purpose=Generates(),
        sampling_defaults=Sampling(),
        tool_format=None,
        reasoning_format=None,
        response_template=None,
        key_sources=KeySources(None),
    )
    engine: Any = FakeEngine()
    with internet_listener(socket.create_server(("127.0.0.1", 0)), None, kept_open=kept_open) as listener:
        server = make_http_server(checked, engine, [listener])
        serving = asyncio.create_task(server.run_until_stopped())
        try:
            async with AsyncClient(base_url=listener.url, timeout=20) as client:
                asked = asyncio.create_task(client.get("/livez"))
                answered, _ = await asyncio.wait([asked], timeout=A_MOMENT if kept_open else None)
                assert bool(answered) != kept_open
                server.listen()
                assert (await asked).status_code == 200
        finally:
            server.stop()
            await serving


@pytest.mark.parametrize(("given", "places"), [({}, 0), ({"lora": ["a=/x", "b=/y"]}, 2), ({"max_loras": 3}, 3)])
def test_adapters_have_memory_for_those_that_are_named_or_for_the_number_that_is_set(
    given: dict[str, Any], places: int
) -> None:
    options = deployment_options(load_config({"model": "demo", **given}), Path("model"), None)
    assert options.settings.max_loras == places
