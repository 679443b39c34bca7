"""``numaserve serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from numaserve.server.cli.config_option import config_option as _option
from numaserve.server.cli.model_options import takes_settings
from numaserve.server.config import load_config


@takes_settings
def serve(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Hugging Face folder, .gguf file, hub id, or 'demo'.")
    ] = None,
    *,
    tp: Annotated[int | None, _option("tp")] = None,
    settings: dict[str, Any],
    host: Annotated[str | None, _option("host")] = None,
    port: Annotated[int | None, _option("port")] = None,
    root_path: Annotated[str | None, _option("root_path")] = None,
    uds: Annotated[Path | None, _option("uds")] = None,
    ssl_certfile: Annotated[Path | None, _option("ssl_certfile")] = None,
    ssl_keyfile: Annotated[Path | None, _option("ssl_keyfile")] = None,
    served_model_name: Annotated[list[str] | None, _option("served_model_name")] = None,
    context_length: Annotated[int | None, _option("context_length")] = None,
    max_running_requests: Annotated[int | None, _option("max_running_requests")] = None,
    max_queued_requests: Annotated[int | None, _option("max_queued_requests")] = None,
    chunked_prefill_size: Annotated[int | None, _option("chunked_prefill_size")] = None,
    kv_cache_gib: Annotated[float | None, _option("kv_cache_gib")] = None,
    mem_fraction_static: Annotated[float | None, _option("mem_fraction_static")] = None,
    weights_cache_gib: Annotated[float | None, _option("weights_cache_gib")] = None,
    chat_template: Annotated[Path | None, _option("chat_template")] = None,
    generation_config: Annotated[str | None, _option("generation_config")] = None,
    dtype: Annotated[str | None, _option("dtype")] = None,
    api_key_file: Annotated[Path | None, _option("api_key_file")] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file with any of these options, or a shipped preset.")
    ] = None,
    log_level: Annotated[str | None, _option("log_level")] = None,
    threads_per_worker: Annotated[int | None, _option("threads_per_worker")] = None,
    reserve_core: Annotated[bool | None, _option("reserve_core", "--reserve-core/--no-reserve-core")] = None,
    keep_alive_seconds: Annotated[int | None, _option("keep_alive_seconds")] = None,
    drain_seconds: Annotated[float | None, _option("drain_seconds")] = None,
    step_deadline_seconds: Annotated[float | None, _option("step_deadline_seconds")] = None,
    overlap: Annotated[bool | None, _option("overlap", "--overlap/--no-overlap")] = None,
    prefix_cache: Annotated[bool | None, _option("prefix_cache", "--prefix-cache/--no-prefix-cache")] = None,
    sse_ping_seconds: Annotated[float | None, _option("sse_ping_seconds")] = None,
    cors_origin: Annotated[list[str] | None, _option("cors_origin")] = None,
    allowed_host: Annotated[list[str] | None, _option("allowed_host")] = None,
    strict_fields: Annotated[bool | None, _option("strict_fields", "--strict-fields/--no-strict-fields")] = None,
    log_prompts: Annotated[bool | None, _option("log_prompts", "--log-prompts/--no-log-prompts")] = None,
) -> None:
    """Serve MODEL over the OpenAI API."""
    options = {key: value for key, value in locals().items() if key not in {"config", "settings"}}
    serve_config = load_config(options | settings, config)
    # Mistakes in the options are told, and other commands run, without importing the engine.
    from numaserve.server.service.service import run_service  # noqa: PLC0415

    run_service(serve_config)
