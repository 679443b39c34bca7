"""``numaserve serve``."""

from pathlib import Path
from typing import Annotated, Any

import typer
from numaserve.server.cli.config_options import takes_keys
from numaserve.server.config import KEYS, load_config


@takes_keys(*(key for key in KEYS if key != "model"))
def serve(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Hugging Face folder, .gguf file, hub id, or 'demo'.")
    ] = None,
    *,
    options: dict[str, Any],
    config: Annotated[
        Path | None, typer.Option(help="YAML file with any of these options, or a shipped preset.")
    ] = None,
) -> None:
    """Serve MODEL over the OpenAI API."""
    serve_config = load_config(options | {"model": model}, config)
    # Mistakes in the options are told, and other commands run, without importing the engine.
    from numaserve.server.service.service import run_service  # noqa: PLC0415

    run_service(serve_config)
