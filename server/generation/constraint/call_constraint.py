"""The constraint of an answer with tools: its calls, or else the format of an answer without calls."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from numaserve.server.answers.tools.format import ToolFormat
from numaserve.server.answers.tools.types import Tool
from numaserve.server.generation.asked import Constrained, ToolUse
from numaserve.server.http.errors import bad_request
from numaserve.server.http.explain import CONFLICT
from numaserve.server.structured.types import Constraint


def with_calls(calls: ToolFormat, use: ToolUse, answer: Constrained | None) -> Constrained | None:
    """Return the constraint of answers that call tools as `use` demands, or else match `answer`; None where every
    answer is allowed."""
    tools = use.callable
    if use.choice == "required":
        return _constrained(calls.grammar(tools, True, use.parallel))
    if answer is None:
        text = calls.grammar(tools, False, use.parallel)
        return None if text is None else _constrained(text)
    required = calls.grammar(tools, True, use.parallel)
    if required is None:
        return answer
    forms = [calls.answer_form(_form(answer)), json.loads(required)["format"]]
    return _tagged({"type": "or", "elements": forms}, answer.param)


def without_form(use: ToolUse, answer: Constrained | None) -> Constrained | None:
    """Return the constraint of answers whose call format is unknown. Raises `ApiError` where calls are required."""
    return _constrained(None) if use.choice == "required" else answer


def in_last_message(calls: ToolFormat, answer: Constrained) -> Constrained:
    """Return the constraint of answers in a format of messages; `answer` constrains the text of the last message."""
    return _tagged(calls.answer_form(_form(answer)), answer.param)


def loosely(use: ToolUse) -> ToolUse | None:
    """Return the same tools with any arguments, for schemas without a grammar; None where a schema must be met."""
    if any(tool.strict for tool in use.tools):
        return None
    return replace(use, tools=tuple(Tool(tool.name, tool.description) for tool in use.tools))


def _constrained(text: str | None) -> Constrained:
    if text is None:
        raise bad_request(
            "Tool calls cannot be enforced for this model. Set 'tool_choice' to 'auto'.",
            "tool_choice",
            "tools_unsupported",
        )
    return Constrained(Constraint("structural_tag", text), "tools")


def _tagged(form: dict[str, Any], param: str) -> Constrained:
    text = json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)
    return Constrained(Constraint("structural_tag", text), param)


def _form(answer: Constrained) -> dict[str, Any]:
    """Return the constraint of an answer's text without calls, as a part of a structural tag."""
    kind, text = answer.constraint.kind, answer.constraint.text
    match kind:
        case "json_object":
            return {"type": "json_schema", "json_schema": {"type": "object"}}
        case "json_schema":
            return {"type": "json_schema", "json_schema": _read(answer)}
        case "regex":
            return {"type": "regex", "pattern": text}
        case "choice":
            texts = [{"type": "const_string", "value": choice} for choice in _read(answer)]
            return {"type": "or", "elements": texts}
        case _:
            message = (
                f"'{answer.param}' is a {'grammar' if kind == 'lark' else 'structural tag'}, which this model, or a "
                "request with tools, does not support. Use a JSON schema, a regular expression or a list of choices."
            )
            raise bad_request(message, answer.param, CONFLICT)


def _read(answer: Constrained) -> Any:
    try:
        return json.loads(answer.constraint.text)
    except (ValueError, RecursionError) as error:
        message = f"'{answer.param}' is not valid JSON or is nested too deeply."
        raise bad_request(message, answer.param, "unsupported_grammar") from error
