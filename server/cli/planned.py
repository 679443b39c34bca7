"""The model and the host of an estimate, as options of ``numaserve plan`` and ``numaserve bench host`` name them."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from numaserve.server.config.serve import ServeConfig, load_config
from numaserve.server.service.checks.instruction_set import instruction_set_for, name_of
from numaserve.server.service.model.by_model import with_model_defaults
from numaserve.server.service.model.deployment import deployment_options
from numaserve.workers.models.load import open_model, read_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.roofline.machine import Machine, load_machine

THIS = "this"

PlanHosts = Annotated[
    list[str] | None,
    typer.Option(
        help="Host to plan for: `this`, a host that numaserve describes such as 2x6980p, or a .yaml file that "
        "describes a host. Repeat it for a model in pipeline stages, one on each host in this order. "
        f"[default: {THIS}]",
        show_default=False,
    ),
]


def described_host(host: str) -> Machine | None:
    """Return the described host of this name; None if it is this host, which is still to be measured.

    Raises `OperatorError` for an unknown host.
    """
    return None if host == THIS else load_machine(host)


def read_planned(
    path: Path, host: Machine | None, options: dict[str, Any]
) -> tuple[ServeConfig, DeploymentOptions, ModelConfig]:
    """Return the configuration of a server of the model at `path` on a host, its deployment options, and the model's
    own configuration. `host` is None for this host.

    `options`: by key, None for an option not given. No weight is read. Raises `OperatorError`.
    """
    serve_config = load_config(options | {"model": os.fspath(path), "weights_cache_gib": 0})
    files = open_model(path, serve_config.settings.mmproj)
    serve_config = with_model_defaults(serve_config, files)
    isa = name_of(instruction_set_for([serve_config.backend])) if host is None else host.isa
    wanted = deployment_options(serve_config, path, isa, weights=False)
    return serve_config, wanted, read_config(files, wanted.settings)
