"""A setting of the model is defined once: whatever plans, measures or serves a model has its option."""

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from numaserve.server.cli.main import whole_command
from numaserve.server.config.serve import load_config
from numaserve.server.service.model.deployment import deployment_options
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, MODEL_OPTIONS, ModelOption, ModelSettings

COMMANDS = ["serve", "plan", "topology", "bench offline", "bench load"]


def another(defined: ModelOption) -> Any:
    """A value that is not the default."""
    if defined.type is bool:
        return not defined.default
    kinds = [defined.type, *get_args(defined.type)]
    if str in kinds:
        return "any file"
    choices = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    if choices:
        return next(each for each in choices if each != defined.default)
    least = defined.option.at_least
    return least + 1 if least is not None and least == defined.default else least


def settings_with(**options: Any) -> ModelSettings:
    """What the plan of a server with these options has."""
    return deployment_options(load_config({"model": "demo", **options}), Path("model"), None).settings


@pytest.mark.parametrize("name", MODEL_OPTIONS)
@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_with_a_model_has_the_option(path: str, name: str) -> None:
    command = whole_command()
    for part in path.split():
        command = command.commands[part]  # type: ignore[attr-defined]
    (option,) = (each for each in command.params if each.name == name)
    assert option.opts == ["--" + name.replace("_", "-")]
    assert option.default is None
    assert option.help.startswith(MODEL_OPTIONS[name].option.description)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", MODEL_OPTIONS)
def test_an_option_reaches_the_plan(name: str) -> None:
    defined = MODEL_OPTIONS[name]
    needed = {} if (needs := defined.option.needs) is None else {needs: another(MODEL_OPTIONS[needs])}
    assert settings_with(**needed, **{name: another(defined)}) != settings_with(**needed)


def test_without_options_the_settings_are_the_defaults() -> None:
    assert settings_with() == DEFAULT_SETTINGS


@pytest.mark.parametrize(
    ("options", "linear", "lm_head"),
    [
        ({"quantization": "int8"}, "int8", None),
        ({"quantization": "int8", "quantize_lm_head": True}, "int8", "int8"),
        ({"quantization": "bf16"}, "bf16", "bf16"),
    ],
)
def test_the_head_is_quantized_where_it_is_asked_for_and_expanded_with_the_rest(
    options: dict[str, Any], linear: str, lm_head: str | None
) -> None:
    formats = settings_with(**options).formats
    assert (formats.linear, formats.lm_head) == (linear, lm_head)
