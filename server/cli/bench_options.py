"""The options that the commands of ``numaserve bench`` share, named as in SGLang's and vLLM's clients."""

import dataclasses
import json
from collections.abc import Callable
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from numaserve.server.cli.shared_options import ApiKeyFile, CaFile, option, with_options
from numaserve.server.loadtest.options import Traffic, Workload
from numaserve.server.service.process.key_sources import client_key
from numaserve.workers.interface.errors import OperatorError

ExtraRequestBody = Annotated[str, typer.Option(help="JSON object whose fields are added to each request.")]

OutputFile = Annotated[Path | None, typer.Option(help="File to append a JSON line per run to.")]
EfficienciesFile = Annotated[
    Path | None,
    typer.Option(
        "--efficiencies",
        help="File of kernel efficiencies that `numaserve bench kernels --json` wrote. Default: the shipped "
        "efficiencies for the instruction set.",
    ),
]
Json = Annotated[Path | None, typer.Option("--json", help="File to append a JSON line per row to.")]
OutputDetails = Annotated[bool, typer.Option("--output-details", help="Include every request in the JSON lines.")]


def takes_load(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of prompts and traffic to a command, which takes them as `workload` and `traffic`.

    The command then raises `OperatorError` for an unusable file or invalid JSON.
    """
    # Options that differ from their fields: the API key comes from a file, and the object as JSON.
    other = [
        option("api_key_file", ApiKeyFile),
        option("ca_file", CaFile),
        option("extra_request_body", ExtraRequestBody, "{}"),
    ]
    shared = [*_fields(Workload).values(), *_fields(Traffic).values(), *other]
    return with_options(command, shared, {"workload": _workload_of, "traffic": _traffic_of})


def _fields(kind: type[Workload] | type[Traffic]) -> dict[str, Parameter]:
    """Return the parameters of the fields that are options."""
    hints = get_type_hints(kind, include_extras=True)
    parameters = {}
    for field in dataclasses.fields(kind):
        accepted, *options = get_args(hints[field.name]) if get_origin(hints[field.name]) is Annotated else (None,)
        for each in options:
            names = [] if each.spelling is None else [each.spelling]
            shown = typer.Option(*names, help=each.help, min=each.least, max=each.most)
            parameters[field.name] = option(field.name, Annotated[accepted, shown], field.default)
    return parameters


def _workload_of(options: dict[str, Any]) -> Workload:
    """Return the workload that a command's options describe."""
    return Workload(**{name: options[name] for name in _fields(Workload)})


def _traffic_of(options: dict[str, Any]) -> Traffic:
    """Return the traffic that a command's options describe.

    Raises `OperatorError` for an unusable file or invalid JSON.
    """
    return Traffic(
        **{name: options[name] for name in _fields(Traffic)},
        api_key=client_key(options["api_key_file"]),
        ca_file=options["ca_file"],
        extra_body=_json_object(options["extra_request_body"]),
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise OperatorError(f"--extra-request-body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise OperatorError('--extra-request-body must be a JSON object like {"temperature": 0.7}')
    return value
