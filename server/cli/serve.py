"""``numaserve serve``."""

from pathlib import Path
from typing import Annotated, Any

import typer
from numaserve.server.cli.config_options import takes_keys
from numaserve.server.cli.shared_options import MAX_LOADED, check_for_several
from numaserve.server.config.file import read_config_file
from numaserve.server.config.serve import KEYS, load_config
from numaserve.workers.interface.errors import OperatorError


@takes_keys(*(key for key in KEYS if key != "model"))
def serve(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Model: Hugging Face folder, .gguf file, hub id, or 'demo'.")
    ] = None,
    *,
    options: dict[str, Any],
    config: Annotated[
        Path | None, typer.Option(help="YAML file with any of these options, or a shipped preset.")
    ] = None,
    models: Annotated[Path | None, typer.Option(help="YAML file of several models to serve instead of MODEL.")] = None,
    max_loaded: Annotated[int | None, MAX_LOADED] = None,
) -> None:
    """Serve MODEL over the OpenAI API."""
    if models is not None:
        _serve_several(models, model, options, config, max_loaded)
        return
    check_for_several(max_loaded)
    serve_config = load_config(options | {"model": model}, config)
    # Imported late: reporting mistakes in the options, and other commands, do not need the server.
    from numaserve.server.service.start import run_service  # noqa: PLC0415

    run_service(serve_config)


def _serve_several(
    models: Path, model: str | None, options: dict[str, Any], config: Path | None, max_loaded: int | None
) -> None:
    from numaserve.server.gateway.models.models_file import GATEWAY_KEYS  # noqa: PLC0415 not needed for one model

    if model is not None:
        raise OperatorError(f"{model} is one model, and {models} is a file of several models: leave out one of the two")
    serve_config = load_config(options | {"model": str(models)}, config)
    given = {key for key, value in options.items() if value not in (None, [])}
    given |= set() if config is None else read_config_file(config).keys()
    for key in KEYS:
        if key in given and key not in GATEWAY_KEYS:
            raise OperatorError(f"'{key}' is an option of a model: set it in {models} for each model")
    from numaserve.server.gateway.service import run_fleet  # noqa: PLC0415

    run_fleet(models, serve_config, max_loaded)
