"""The options of a model's settings, made of their definition in workers/settings.py."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter
from typing import Annotated, Any, Literal, get_args, get_origin

from numaserve.server.cli.config_option import config_option
from numaserve.server.cli.shared_options import with_options
from numaserve.workers.settings import MODEL_OPTIONS, ModelOption


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a model's settings, which it takes as `settings`: keys of the configuration, None
    where an option is not given."""
    return with_options(command, [_parameter(each) for each in MODEL_OPTIONS.values()], {"settings": dict})


def _parameter(defined: ModelOption) -> Parameter:
    # A choice is text here: the configuration tells of a mistake as it does when the key is in a file.
    is_choice = any(get_origin(kind) is Literal for kind in (defined.type, *get_args(defined.type)))
    accepted = str if is_choice else defined.type
    annotation: Any = Annotated[accepted | None, config_option(defined.name)]
    return Parameter(defined.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
