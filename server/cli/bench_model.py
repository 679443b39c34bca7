"""The model of ``numaserve bench offline`` and ``numaserve bench load``, and deployments of its ranks."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from numaserve.server.config.serve import load_config
from numaserve.server.service.checks.instruction_set import instruction_set
from numaserve.server.service.model.deployment import deployment_options
from numaserve.server.service.model.model_argument import served_name
from numaserve.workers.bench.shapes import MODEL_SHAPES, random_checkpoint
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.deployment import Deployment, make_deployment
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.topology import read_topology
from numaserve.workers.weights.hub import resolve_model

Model = Annotated[
    str | None, typer.Argument(metavar="[MODEL]", help="Model: Hugging Face folder, .gguf file, hub id, or 'demo'.")
]
Shape = Annotated[
    str | None, typer.Option(help=f"Use random weights of a shape instead of a model: {', '.join(MODEL_SHAPES)}.")
]
Tp = Annotated[
    list[int] | None,
    typer.Option(min=1, help="Number of ranks. Repeat the option for several. Default: one per usable NUMA node."),
]


@contextmanager
def checkpoint(model: str | None, shape: str | None, say: Callable[[str], None]) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of the model; a model of random weights is removed afterwards."""
    if (model is None) == (shape is None):
        raise OperatorError("name either a MODEL or a shape with --shape")
    if shape is not None:
        say(f"creating random weights of shape {shape}")
        with random_checkpoint(shape) as folder:
            yield shape, folder
    elif model is not None:
        path = resolve_model(model)
        yield served_name(model, path), path


def deployments(
    name: str,
    path: Path,
    tp: Sequence[int] | None,
    options: dict[str, Any],
    step_tokens: Callable[[DeploymentOptions, ModelConfig], int] | None = None,
) -> Iterator[Deployment]:
    """Yield a deployment for each number of ranks. Where `options` leave the size of steps out, `step_tokens` chooses
    it."""
    isa = instruction_set().name
    for ranks in tp or (None,):
        # Only servers store packed weights in the cache of servers.
        serve_config = load_config(options | {"model": os.fspath(path), "tp": ranks, "weights_cache_gib": 0})
        # The plans of a benchmark keep all pages of a sequence.
        planned = replace(deployment_options(serve_config, path, isa), window_tables=False)
        config = load_model_config(path, planned.settings)
        deployment = make_deployment(planned, config, read_topology())
        if planned.may_lengthen_steps and step_tokens is not None:
            size = min(step_tokens(planned, config), deployment.shared_step_tokens)
            planned = replace(planned, max_step_tokens=size, may_lengthen_steps=False)
            deployment = make_deployment(planned, config, read_topology())
        yield deployment


def about(name: str, deployment: Deployment) -> dict[str, str | int]:
    """Return the table columns that describe the run."""
    settings = deployment.launches[0].settings
    formats = settings.formats
    names = [str(each or "as published") for each in (formats.linear, formats.lm_head)]
    weights = names[0] if names[0] == names[1] else f"{names[0]}, head {names[1]}"
    by = ", times int8" if "int8" in deployment.multiplied_by else ""
    row: dict[str, str | int] = {"model": name, "weights": weights + by, "kv": settings.kv_cache_dtype}
    row["tp"] = len(deployment.launches)
    if settings.expert_parallel:
        row["experts"] = "whole"
    return row
