"""The choice of a model's formats for calls and thoughts: by its chat template or by name."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from numaserve.server.answers.reasoning.format import ReasoningFormat
from numaserve.server.answers.reasoning.formats import reasoning_format_of, reasoning_formats
from numaserve.server.answers.response_template.errors import BadTemplate
from numaserve.server.answers.response_template.template import ResponseTemplate, response_template_in
from numaserve.server.answers.tools.format import ToolFormat
from numaserve.server.answers.tools.formats import plain_format, tool_format_of, tool_formats
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.workers.interface.errors import OperatorError, nearest

_Format = TypeVar("_Format")
_RESPONSE_TEMPLATE = "response_template"

_log = logging.getLogger(__name__)


def tool_format(name: str | None, template: str) -> ToolFormat | None:
    """Return the format called `name`, else the format that matches the template; None if there is none.

    Raises `OperatorError` for an unknown name.
    """
    if name == _RESPONSE_TEMPLATE:
        return None
    if name is not None:
        return _named("tool-call-parser", name, {_RESPONSE_TEMPLATE: None, **tool_formats()})
    return tool_format_of(template) if "tools" in template else plain_format()


def reasoning_format(name: str | None, template: str) -> ReasoningFormat | None:
    """Return the format called `name`, else the format that matches the template; None if there is none.

    Raises `OperatorError` for an unknown name.
    """
    if name is not None:
        return _named("reasoning-parser", name, reasoning_formats())
    return reasoning_format_of(template)


def response_template(
    name: str | None, calls: ToolFormat | None, model: Path, tokenizer: TokenizerProtocol, *, max_answers: int
) -> ResponseTemplate | None:
    """Return the response template of the model in the folder `model`; None if the model has none.

    It is used if `name` asks for it, or if there is neither a name nor a format of `calls`. Raises `OperatorError`.
    """
    if name != _RESPONSE_TEMPLATE and (name is not None or calls is not None):
        return None
    definition = response_template_in(model)
    try:
        if definition is None and name is not None:
            raise BadTemplate("tokenizer_config.json has no response template")
        special = (tokenizer.token_bytes(each).decode(errors="replace") for each in tokenizer.special_token_ids)
        texts = sorted(filter(None, special))
        return None if definition is None else ResponseTemplate(definition, texts, max_answers=max_answers)
    except BadTemplate as error:
        if name is not None:
            raise OperatorError(
                f"--tool-call-parser {name}: the model's response template cannot be used: {error}. "
                "Name another format, or leave the option out"
            ) from error
        _log.warning("ignoring the model's response template: %s", error)
        return None


def _named(option: str, name: str, known: Mapping[str, _Format]) -> _Format | None:
    if name == "none":
        return None
    if name not in known:
        near = nearest(name, known)
        hint = f" (similar names: {', '.join(near)})" if near else ""
        raise OperatorError(
            f"--{option} {name[:100]!r} is not a known format{hint}: name a format that docs/api.md lists, or "
            "`none`, or leave the option out"
        )
    return known[name]
