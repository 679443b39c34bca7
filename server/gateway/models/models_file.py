"""The models file: the options of each model, its part of the machine, and its time of loading."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from numaserve.server.config.errors import unknown_key, validated
from numaserve.server.config.file import by_key, read_config_file
from numaserve.server.config.option_types import NonBlank
from numaserve.server.config.serve import KEYS, ServeConfig, load_config
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.step_lengths import SHORT_STEP
from numaserve.workers.planning.topology import parse_cpu_list
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

# Keys of the gateway, not of a model: its address, security, logs and shutdown.
GATEWAY_KEYS = frozenset(
    {
        *("host", "port", "uds", "root_path", "ssl_certfile", "ssl_keyfile", "api_key_file", "cors_origin"),
        *("allowed_host", "log_level", "log_format", "keep_alive_seconds", "drain_seconds", "ui"),
    }
)
_MODEL_KEYS = {key: field for key, field in KEYS.items() if key not in GATEWAY_KEYS | {"memory_gib"}}
_SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) ?(MiB|GiB|TiB)")
_GIB_IN = {"MiB": 1 / 1024, "GiB": 1.0, "TiB": 1024.0}
_CPU_LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*")
_NAME_CHARACTERS = 256


def _as_numbers(value: object) -> object:
    numbers = [value] if isinstance(value, int) else value
    if not isinstance(numbers, list) or not numbers or not all(type(each) is int and each >= 0 for each in numbers):
        raise ValueError("must be a node number or a list of node numbers, as in [0, 1]")
    return tuple(dict.fromkeys(numbers))


def _as_cores(value: object) -> object:
    text = str(value).replace(" ", "")  # YAML parses a single core as a number
    cores = parse_cpu_list(text) if _CPU_LIST.fullmatch(text) and not isinstance(value, bool) else set()
    if not cores:
        raise ValueError("must be a list of cores such as '0-3,8'")
    return tuple(sorted(cores))


def _as_gib(value: object) -> object:
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    size = float(found[1]) * _GIB_IN[found[2]] if found else 0.0
    if not size:
        raise ValueError("must be a size such as 40GiB or 500MiB")
    return size


def _nameable(name: str) -> str:
    if len(name) > _NAME_CHARACTERS or not name.isprintable():
        raise ValueError(f"must have at most {_NAME_CHARACTERS} characters, all printable")
    return name


Numbers = Annotated[tuple[int, ...], BeforeValidator(_as_numbers)]
Cores = Annotated[tuple[int, ...], BeforeValidator(_as_cores)]
Gib = Annotated[float, BeforeValidator(_as_gib)]
Name = Annotated[NonBlank, AfterValidator(_nameable)]


class Place(BaseModel):
    """The placement of a model, and its time of loading: the keys that its model process does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    nodes: Numbers | None = Field(None, description="NUMA nodes of the model. Default: all nodes.")
    cores: Cores | None = Field(None, description="Cores of the model, instead of `nodes`, such as `0-3,8`.")
    memory: Gib | None = Field(None, description="Maximum memory for weights, scratch and caches, such as `40GiB`.")
    load: Literal["start", "request"] = Field(
        "start",
        description="Time of loading. `start`: when the server starts. `request`: when the first request "
        "names the model.",
    )
    pinned: bool = Field(False, description="Never unload the model to free memory or cores for other models.")
    idle_unload_s: float | None = Field(
        None,
        gt=0,
        le=31_536_000,
        description="Seconds without a request after which the model is unloaded. Default: never.",
    )


class Whole(BaseModel):
    """The top-level keys of the models file."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    models: dict[Name, dict[str, Any]] = Field(min_length=1, description="Models by name.")
    default: str | None = Field(None, description="Model for requests that name none. Default: the first model.")
    max_loaded: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Maximum number of models loaded at the same time. Default: limited by memory and cores alone.",
    )
    load_wait_s: float = Field(
        300.0,
        gt=0,
        le=86400,
        description="Seconds that a request waits for its model to load. A request that waits longer gets status 503.",
    )


@dataclass(frozen=True)
class ModelSpec:
    """A model of the file. `config` is the configuration of its model process, made from `options`."""

    name: str
    config: ServeConfig
    options: Mapping[str, Any]
    place: Place


@dataclass(frozen=True)
class ModelsFile:
    """The contents of the models file; `models` by name, in the file's order."""

    models: Mapping[str, ModelSpec]
    default: str
    max_loaded: int | None
    load_wait_s: float


def read_models_file(path: Path, max_loaded: int | None = None) -> ModelsFile:
    """Read the models file; `max_loaded` overrides the file's.

    Raises `OperatorError` with one line that names the model, the key and the allowed values.
    """
    whole = validated(Whole, read_config_file(path), f"{path}: ")
    models = {name: _spec(name, spelt, f"{path}: model '{name}'") for name, spelt in whole.models.items()}
    default = next(iter(models)) if whole.default is None else whole.default
    if default not in models:
        raise OperatorError(
            f"{path}: default is '{default}', which is not a model of the file: name one of {', '.join(models)}"
        )
    _check_names(models, path)
    _check_folders(models, path)
    return ModelsFile(models, default, max_loaded or whole.max_loaded, whole.load_wait_s)


def _check_names(models: Mapping[str, ModelSpec], path: Path) -> None:
    owner = {name: name for name in models}
    for name, spec in models.items():
        for other in (*(spec.config.served_model_name or ()), *(each.name for each in spec.config.lora or ())):
            if owner.setdefault(other, name) != name:
                raise OperatorError(
                    f"{path}: '{other}' is a name of both '{name}' and '{owner[other]}': remove one of the two"
                )


def _check_folders(models: Mapping[str, ModelSpec], path: Path) -> None:
    """Refuse a folder of cached prefixes for two models: the second one to be loaded would find it locked."""
    owner: dict[Path, str] = {}
    for name, spec in models.items():
        folder = spec.config.kv_disk_path
        if folder is not None and owner.setdefault(folder.resolve(), name) != name:
            raise OperatorError(
                f"{path}: kv_disk_path {folder} is the folder of both '{name}' and '{owner[folder.resolve()]}': give "
                "each model a folder of its own"
            )


def _spec(name: str, spelt: Mapping[str, Any], where: str) -> ModelSpec:
    values = by_key(spelt, where)
    for key in values:
        if key in GATEWAY_KEYS:
            raise OperatorError(
                f"{where}: '{key}' is an option of the gateway: pass it to numaserve serve, not to a model"
            )
        if key not in _MODEL_KEYS and key not in Place.model_fields:
            raise OperatorError(f"{where}: {unknown_key(key, _MODEL_KEYS | Place.model_fields)}")
    place = validated(Place, {key: values.pop(key) for key in Place.model_fields if key in values}, f"{where}: ")
    if place.nodes is not None and place.cores is not None:
        raise OperatorError(f"{where}: both nodes and cores are set: leave out one of the two")
    options: dict[str, Any] = {} if place.memory is None else {"memory_gib": place.memory}
    if place.cores is not None and place.memory is None:
        # Models on other cores of the node take the same memory: longer steps might leave a model too little.
        options["chunked_prefill_size"] = SHORT_STEP
    options |= values
    try:
        config = load_config(options)
    except OperatorError as error:
        raise OperatorError(f"{where}: {error}") from None
    return ModelSpec(name, config, options, place)
